-- Row-level security, for a catalog on PostgreSQL in which users or teams have logins of their own: a trainer may add to
-- the runs of its login only. Run it as a superuser after docs/postgresql.sql, and again after each
-- `ckptstore db upgrade`; it may be run at any time.
--
--     psql --set ON_ERROR_STOP=1 --file docs/postgresql-rows.sql ckptstore
--
-- A run is of the login that records it first; those that are there already are the operators'. To give one to another
-- login, or to a team, which is a role that its members have:
--
--     UPDATE run_logins SET login = 'team' WHERE run_id = (SELECT id FROM runs WHERE name = 'my-run');
--
-- Everybody in the catalog may read all of it. Operators may write all of it.

BEGIN;

CREATE TABLE IF NOT EXISTS run_logins (run_id integer PRIMARY KEY REFERENCES runs, login name NOT NULL);
ALTER TABLE run_logins OWNER TO ckptstore_owner;
REVOKE ALL ON run_logins FROM PUBLIC, ckptstore_trainer, ckptstore_operator;
GRANT SELECT ON run_logins TO ckptstore_trainer;
GRANT SELECT, UPDATE ON run_logins TO ckptstore_operator;
INSERT INTO run_logins SELECT id, 'ckptstore_operator' FROM runs ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION note_login() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO run_logins VALUES (NEW.id, session_user);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION may_write_run(run integer) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT pg_has_role(session_user, 'ckptstore_operator', 'MEMBER') OR EXISTS (
        SELECT FROM run_logins WHERE run_id = run AND pg_has_role(session_user, login, 'MEMBER'))
$$;

CREATE OR REPLACE FUNCTION may_write_launch(launch text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT may_write_run(run_id) FROM launches WHERE id = launch
$$;

CREATE OR REPLACE FUNCTION may_write_save(save text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT may_write_launch(launch_id) FROM saves WHERE id = save
$$;

DROP TRIGGER IF EXISTS note_login ON runs;
CREATE TRIGGER note_login AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION note_login();

DO $$
DECLARE
    named record;
BEGIN
    FOR named IN
        SELECT unnest(ARRAY['launches', 'pins', 'tags', 'policies', 'renamed', 'forgotten', 'unplaced', 'journals', 'unwritten',
                            'collections', 'trash', 'gc_locks'])
                   AS name, 'may_write_run(run_id)' AS condition
        UNION ALL
        SELECT unnest(ARRAY['resolutions', 'outcomes', 'sources', 'endings', 'leases', 'exit_requests', 'views', 'launch_strategies',
                            'saves', 'copies', 'copying']),
               'may_write_launch(launch_id)'
        UNION ALL
        SELECT 'checkpoints', 'may_write_save(save_id)'
    LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', named.name);
        EXECUTE format('DROP POLICY IF EXISTS everybody_reads ON %I', named.name);
        EXECUTE format('DROP POLICY IF EXISTS own_runs ON %I', named.name);
        EXECUTE format('CREATE POLICY everybody_reads ON %I FOR SELECT USING (true)', named.name);
        EXECUTE format('CREATE POLICY own_runs ON %I USING (%s) WITH CHECK (%s)',
                       named.name, named.condition, named.condition);
    END LOOP;
END
$$;

COMMIT;

-- Who may do what in a catalog on PostgreSQL. Run it as a superuser in the catalog's database, once it has its schema,
-- and again after each `ckptstore db upgrade`; it may be run at any time.
--
--     createuser --pwprompt ckptstore_owner
--     createdb --owner ckptstore_owner ckptstore
--     ckptstore --db postgresql://ckptstore_owner@db.example/ckptstore db upgrade
--     psql --set ON_ERROR_STOP=1 --file docs/postgresql.sql ckptstore
--     psql --command 'CREATE ROLE trainer LOGIN IN ROLE ckptstore_trainer' --command '\password trainer' ckptstore
--     psql --command 'CREATE ROLE alice LOGIN IN ROLE ckptstore_operator' --command '\password alice' ckptstore
--
-- ckptstore_owner     owns the schema; nobody but `ckptstore db upgrade` needs it.
-- ckptstore_trainer   training jobs: join, resume, register. It deletes no run, launch, save or checkpoint.
-- ckptstore_operator  people, and cron: all commands but `db upgrade`; and jobs with `registrar(retention=…)`.
--                     It deletes none of these either: what gc removes stays on record.
--
-- Of a table that a later version adds they may only read, until this file, which names each, was run again.

BEGIN;

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['ckptstore_owner', 'ckptstore_trainer', 'ckptstore_operator'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO ckptstore_owner, ckptstore_trainer, ckptstore_operator',
                   current_database());
END
$$;

REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO ckptstore_owner;
GRANT USAGE ON SCHEMA public TO ckptstore_trainer, ckptstore_operator;

REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, ckptstore_trainer, ckptstore_operator;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO ckptstore_trainer, ckptstore_operator;
ALTER DEFAULT PRIVILEGES FOR ROLE ckptstore_owner IN SCHEMA public
    GRANT SELECT ON TABLES TO ckptstore_trainer, ckptstore_operator;

-- What is recorded of training. UPDATE on `runs` is what it takes to lock a row of it; nothing in it is changed.
GRANT INSERT, UPDATE ON
    launches, launch_strategies, resolutions, outcomes, sources, endings, saves, checkpoints, journals, leases, views,
    tiers, copies
    TO ckptstore_trainer, ckptstore_operator;
GRANT INSERT ON runs, strategies TO ckptstore_trainer, ckptstore_operator;
GRANT UPDATE (id) ON runs TO ckptstore_trainer, ckptstore_operator;
GRANT USAGE ON SEQUENCE runs_id_seq TO ckptstore_trainer, ckptstore_operator;

-- Who copies what to a tier now.
GRANT INSERT, UPDATE, DELETE ON copying TO ckptstore_trainer, ckptstore_operator;

-- What a journal could not take waits here until it can.
GRANT INSERT, UPDATE, DELETE ON unwritten TO ckptstore_trainer, ckptstore_operator;

-- What people say of runs. Trainers need it too: a job that starts takes up what journals tell, pins among it.
GRANT INSERT, UPDATE, DELETE ON pins, tags, policies, renamed, forgotten, unplaced TO ckptstore_trainer, ckptstore_operator;

-- The preStop hook of a trainer asks for an exit too.
GRANT INSERT, UPDATE, DELETE ON exit_requests TO ckptstore_trainer, ckptstore_operator;

-- gc, undo, purge.
GRANT INSERT, UPDATE, DELETE ON gc_locks, collections, trash TO ckptstore_operator;

-- What `watch` has told to whom.
GRANT INSERT, UPDATE ON notifications TO ckptstore_operator;

-- What gc did is in journals, which trainers take up.
GRANT INSERT, UPDATE ON collections, trash TO ckptstore_trainer;

COMMIT;

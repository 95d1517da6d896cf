-- Forgets files that are gone, of a catalog on PostgreSQL that has grown too large. It touches no file.
--
--     psql --set ON_ERROR_STOP=1 --set days=90 --file docs/prune.sql ckptstore
--
-- What goes: rows of files that are gone from the disk, or were renamed, of saves older than so many days, where the run
-- has a newer save of which files are there. So a run of which nothing is left stays on record, and its next start says so.
-- What is on disk or in the trash, pinned or tagged steps, launches, their plans and how they ended all stay.
-- Journals have these rows still: a catalog that is made anew from them has them too, until this is run again.

BEGIN;

CREATE TEMPORARY TABLE forgotten ON COMMIT DROP AS
WITH newest AS (
    SELECT launches.run_id, max(saves.created_at) AS created_at
    FROM launches
    JOIN saves ON saves.launch_id = launches.id
    WHERE EXISTS (SELECT FROM checkpoints WHERE checkpoints.save_id = saves.id AND checkpoints.state = 'complete')
    GROUP BY launches.run_id
)
SELECT checkpoints.id, checkpoints.save_id
FROM checkpoints
JOIN saves ON saves.id = checkpoints.save_id
JOIN launches ON launches.id = saves.launch_id
JOIN newest ON newest.run_id = launches.run_id
WHERE checkpoints.state IN ('missing', 'moved')
  AND saves.created_at < newest.created_at
  AND saves.created_at < now() - make_interval(days => :days)
  AND NOT EXISTS (SELECT FROM trash
                  WHERE trash.checkpoint_id = checkpoints.id AND (trash.wanted = 'trash' OR NOT trash.settled))
  AND NOT EXISTS (SELECT FROM copies WHERE copies.checkpoint_id = checkpoints.id AND copies.state <> 'gone')
  AND NOT EXISTS (SELECT FROM pins
                  WHERE pins.run_id = launches.run_id AND pins.global_step = saves.global_step AND pins.pinned)
  AND NOT EXISTS (SELECT FROM tags WHERE tags.run_id = launches.run_id AND tags.global_step = saves.global_step);

DELETE FROM copies USING forgotten WHERE copies.checkpoint_id = forgotten.id;

DELETE FROM checkpoints USING forgotten WHERE checkpoints.id = forgotten.id;

DELETE FROM saves
WHERE id IN (SELECT save_id FROM forgotten)
  AND NOT EXISTS (SELECT FROM checkpoints WHERE checkpoints.save_id = saves.id);

COMMIT;

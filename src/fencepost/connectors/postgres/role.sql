-- A role for a job that creates its own tables. Run as the owner of the schema. The names are examples:
-- role fencepost_writer, database shop, schema sales. Give the role a password, or an entry in pg_hba.conf.

CREATE ROLE fencepost_writer LOGIN;
GRANT CONNECT ON DATABASE shop TO fencepost_writer;
-- An upsert sorts the rows of an epoch in a temporary table.
GRANT TEMPORARY ON DATABASE shop TO fencepost_writer;
-- For fencepost_epoch and fencepost_target, the job's table, and the staging tables of tasks with many rows.
GRANT USAGE, CREATE ON SCHEMA sales TO fencepost_writer;

-- If the job's table already exists and has another owner:
--   GRANT SELECT, INSERT, UPDATE ON sales.orders TO fencepost_writer;    with a key
--   GRANT SELECT, INSERT ON sales.orders TO fencepost_writer;            without
--   GRANT DELETE ON sales.orders TO fencepost_writer;                    for deletes= and mode="replace", too

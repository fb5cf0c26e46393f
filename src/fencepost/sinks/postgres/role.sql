-- A role for a job that makes its tables itself. Run as the owner of the schema; the names are examples:
-- role fencepost_writer, database shop, schema sales. Give it a password, or a line in pg_hba.conf.

CREATE ROLE fencepost_writer LOGIN;
GRANT CONNECT ON DATABASE shop TO fencepost_writer;
-- An upsert sorts the rows of an epoch in a temporary table.
GRANT TEMPORARY ON DATABASE shop TO fencepost_writer;
-- fencepost_epoch and fencepost_target, the job's table, and the tables of tasks with many rows (staging).
GRANT USAGE, CREATE ON SCHEMA sales TO fencepost_writer;

-- If the job's table is there already and belongs to somebody else:
--   GRANT SELECT, INSERT, UPDATE ON sales.orders TO fencepost_writer;    with a key
--   GRANT SELECT, INSERT ON sales.orders TO fencepost_writer;            without

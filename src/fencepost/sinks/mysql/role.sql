-- A user for a job that makes its tables itself. Run as an administrator; the names are examples:
-- user fencepost_writer, database shop. Give it a password.

CREATE USER fencepost_writer@'%';
-- fencepost_epoch and fencepost_target, the job's table, and the tables of tasks with many rows (staging). MySQL has no
-- rights on tables whose names begin alike, so that these are for the whole database: give the job one of its own.
GRANT SELECT, INSERT, UPDATE, CREATE, DROP ON shop.* TO fencepost_writer@'%';
-- An upsert sorts the rows of an epoch in a temporary table.
GRANT CREATE TEMPORARY TABLES ON shop.* TO fencepost_writer@'%';

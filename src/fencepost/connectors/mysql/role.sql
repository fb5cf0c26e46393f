-- A user for a job that creates its own tables. Run as an administrator. The names are examples:
-- user fencepost_writer, database shop. Give the user a password.

CREATE USER fencepost_writer@'%';
-- For fencepost_epoch and fencepost_target, the job's table, and the staging tables of tasks with many rows. MySQL cannot
-- grant by name prefix, so these grants cover the whole database: give the job its own database.
GRANT SELECT, INSERT, UPDATE, CREATE, DROP ON shop.* TO fencepost_writer@'%';
-- deletes= and mode="replace" also need DELETE.
-- An upsert sorts the rows of an epoch in a temporary table.
GRANT CREATE TEMPORARY TABLES ON shop.* TO fencepost_writer@'%';

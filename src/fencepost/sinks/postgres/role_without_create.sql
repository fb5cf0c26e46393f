-- A role that may create nothing that stays: an administrator makes all tables. Run as the owner of the schema; the
-- names are examples: role fencepost_writer, database shop, schema sales, table orders with PRIMARY KEY (id).
-- Every grant here is needed, and no other. Tasks cannot stage rows in the database then: the driver writes all of them
-- (staging="auto" finds that out, staging="checkpoint" says so, staging="target" is refused).

CREATE TABLE sales.fencepost_epoch (
    job text, sink text, lineage text NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL,
    handle text NOT NULL, writer bigint NOT NULL, PRIMARY KEY (job, sink)
);
-- One row, for ever: by it a job knows its database again.
CREATE TABLE sales.fencepost_target (id text PRIMARY KEY);
INSERT INTO sales.fencepost_target VALUES (gen_random_uuid());

CREATE ROLE fencepost_writer LOGIN;
GRANT CONNECT ON DATABASE shop TO fencepost_writer;
GRANT USAGE ON SCHEMA sales TO fencepost_writer;
GRANT SELECT ON sales.fencepost_target TO fencepost_writer;
GRANT SELECT, INSERT, UPDATE ON sales.fencepost_epoch TO fencepost_writer;
-- With a key. Without one, INSERT on the table is all that is needed of these two; mode="replace" also needs DELETE.
GRANT TEMPORARY ON DATABASE shop TO fencepost_writer;
GRANT SELECT, INSERT, UPDATE ON sales.orders TO fencepost_writer;

-- A role that may not create permanent tables: an administrator creates them all. Run as the owner of the schema. The
-- names are examples: role fencepost_writer, database shop, schema sales, table orders with PRIMARY KEY (id).
-- Every grant here is needed, and no others are. Tasks cannot stage rows in the database, so the driver writes all of
-- them (staging="checkpoint", or "auto", which detects it; staging="target" is refused).

CREATE TABLE sales.fencepost_epoch (
    job text, sink text, lineage text NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL,
    handle text NOT NULL, writer bigint NOT NULL, format bigint NOT NULL,
    fencepost text NOT NULL, PRIMARY KEY (job, sink)
);
-- Exactly one row, which must never change: a job recognises its database by it.
CREATE TABLE sales.fencepost_target (id text PRIMARY KEY);
INSERT INTO sales.fencepost_target VALUES (gen_random_uuid());

CREATE ROLE fencepost_writer LOGIN;
GRANT CONNECT ON DATABASE shop TO fencepost_writer;
GRANT USAGE ON SCHEMA sales TO fencepost_writer;
GRANT SELECT ON sales.fencepost_target TO fencepost_writer;
GRANT SELECT, INSERT, UPDATE ON sales.fencepost_epoch TO fencepost_writer;
-- With a key. Without one, only INSERT on the table is needed of these two; deletes= and mode="replace" also need
-- DELETE on it.
GRANT TEMPORARY ON DATABASE shop TO fencepost_writer;
GRANT SELECT, INSERT, UPDATE ON sales.orders TO fencepost_writer;

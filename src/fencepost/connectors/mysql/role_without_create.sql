-- A user that may not create permanent tables: an administrator creates them all. Run as an administrator. The names are
-- examples: user fencepost_writer, database shop, table orders with PRIMARY KEY (id). Every grant here is needed, and no
-- others are. Tasks cannot stage rows in the database, so the driver writes all of them (staging="checkpoint", or
-- "auto", which detects it; staging="target" is refused).

CREATE TABLE shop.fencepost_epoch (
    job varchar(255), sink varchar(255), lineage varchar(64) NOT NULL, generation bigint NOT NULL,
    epoch bigint NOT NULL, handle longtext NOT NULL, writer bigint NOT NULL, format bigint NOT NULL,
    fencepost varchar(64) NOT NULL, PRIMARY KEY (job, sink)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
-- Exactly one row, which must never change: a job recognises its database by it.
CREATE TABLE shop.fencepost_target (id varchar(64) PRIMARY KEY) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO shop.fencepost_target VALUES (uuid());

CREATE USER fencepost_writer@'%';
GRANT SELECT ON shop.fencepost_target TO fencepost_writer@'%';
GRANT SELECT, INSERT, UPDATE ON shop.fencepost_epoch TO fencepost_writer@'%';
-- With a key. Without one, only SELECT and INSERT on the table are needed of these two; deletes= and mode="replace" also
-- need DELETE on it.
GRANT CREATE TEMPORARY TABLES ON shop.* TO fencepost_writer@'%';
GRANT SELECT, INSERT, UPDATE ON shop.orders TO fencepost_writer@'%';

-- A user that may create nothing that stays: an administrator makes all tables. Run as one; the names are examples:
-- user fencepost_writer, database shop, table orders with PRIMARY KEY (id). Every grant here is needed, and no other.
-- Tasks cannot stage rows in the database then: the driver writes all of them (staging="auto" finds that out,
-- staging="checkpoint" says so, staging="target" is refused).

CREATE TABLE shop.fencepost_epoch (
    job varchar(255), sink varchar(255), lineage varchar(64) NOT NULL, generation bigint NOT NULL,
    epoch bigint NOT NULL, handle longtext NOT NULL, writer bigint NOT NULL, PRIMARY KEY (job, sink)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
-- One row, for ever: by it a job knows its database again.
CREATE TABLE shop.fencepost_target (id varchar(64) PRIMARY KEY) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT INTO shop.fencepost_target VALUES (uuid());

CREATE USER fencepost_writer@'%';
GRANT SELECT ON shop.fencepost_target TO fencepost_writer@'%';
GRANT SELECT, INSERT, UPDATE ON shop.fencepost_epoch TO fencepost_writer@'%';
-- With a key. Without one, SELECT and INSERT on the table are all that is needed of these two.
GRANT CREATE TEMPORARY TABLES ON shop.* TO fencepost_writer@'%';
GRANT SELECT, INSERT, UPDATE ON shop.orders TO fencepost_writer@'%';

"""MySQL and MariaDB as a sink: the rows of an epoch and the epoch row in one transaction, open until the decision.

names        tables and columns, quoted
columns      which columns of a DataFrame fit which columns of a table
catalogue    what the server says about a table
loading      LOAD DATA LOCAL or INSERT, and INSERT … SELECT … ON DUPLICATE KEY UPDATE
trouble      what its errors mean
connection   PyMySQL, set up so that nothing is cut or rounded, and no file of ours is sent
server       one connection: transaction, epoch row, identity, sessions of older drivers
session      the driver's side: preflight, vote, commit, recovery
parallel     the tasks' side, for epochs that outgrow one driver
role.sql     the least that a user needs; role_without_create.sql for tables that an administrator makes
"""

"""PostgreSQL as a sink: the rows of an epoch and the epoch row in one transaction, which stays open until the decision.

names        tables and columns, quoted
columns      which columns of a DataFrame fit which columns of a table
catalogue    what the server says about a table
loading      COPY, and INSERT … ON CONFLICT
trouble      what its errors mean
server       one connection: transaction, epoch row, identity, sessions of older drivers (psycopg)
session      the driver's side: preflight, vote, commit, recovery
parallel     the tasks' side, for epochs that outgrow one driver
role.sql     the least that a role needs; role_without_create.sql for tables that an administrator makes
"""

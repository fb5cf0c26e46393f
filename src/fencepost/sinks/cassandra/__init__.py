"""Cassandra as a sink: rows are staged first and written after the decision, with a time that the decision names.

durability   does a table keep what it acknowledged?
columns      Arrow ─► CQL types and values
cql          the statements
connection   one connection; the driver's errors in two words: silent, refused
target       the look at keyspace and table before any row
session      the driver's side: preflight, vote, commit, recovery
"""

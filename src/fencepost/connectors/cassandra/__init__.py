"""Cassandra as a sink: rows are staged first and written after the decision, with a timestamp from the decision.

sink      the settings
columns   Arrow ─► CQL types and values
server    one connection and what its errors mean, the checks before the first row, the statements
session   the driver's side: preflight, vote, commit, recovery
"""

"""Redis as a sink: one script writes rows and mark, on condition that the old mark is as expected.

sink      the settings
columns   rows ─► Redis keys and values, in chunks, as bytes
server    one connection, the scripts that run in the server, its settings, and what its errors mean
session   the driver's side: vote, commit, recovery
"""

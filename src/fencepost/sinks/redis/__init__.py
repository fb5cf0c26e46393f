"""Redis as a sink: rows and mark in one script, whose precondition is the mark that it replaces.

texts        a column as Redis keeps it
layout       which Redis key and value a row becomes
chunks       an epoch's rows ─► each key once ─► what one script call writes
wire         whole columns as the bytes of a command
scripts      what runs in the server: check everything, then write everything
state        the mark, as a hash
server       what the server says of itself: does it keep what it acknowledges, what do its errors mean
target       one connection, and the scripts on it (redis-py)
session      the driver's side: vote, commit, recovery
"""

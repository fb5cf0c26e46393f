"""Programs that count again what a job must have written. They import nothing of fencepost, and are run by path.

exactly          numbers in, running sums out: the stand-in engine
recount          files in; rows, totals and counts in SQLite, files and databases; and a reader who looks all the time
recount_state    the same for state and what it makes
recount_kafka    topics in and out
recount_tables   topics in, tables out; and a reader who looks all the time
readers          how an ordinary reader sees each kind of target
"""

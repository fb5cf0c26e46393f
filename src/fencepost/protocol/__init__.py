"""The protocol: pure. No pyspark, no I/O, no clock.

A step is a generator that yields effects. `runtime/performer.py` performs them for real; the model (`proof/`) applies
them to a world in memory.

    records    what the ledger holds               order     which record may follow which, as a table
    effects    everything a step may ask for       append    how one record is added
    epoch      one epoch; the point of no return is `decide`
    recovery   how a new driver finishes what a dead one began
    rebuild    how Spark's own log is made to match the ledger
    lineages   how a job continues from an earlier epoch: rewind, restore, fork, rescale
"""

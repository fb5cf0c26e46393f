"""The protocol: pure. No pyspark, no I/O, no clock.

Steps are generators that yield effects (`effects.py`); `perform.py` does them for real, `prove/model` in memory.

    records   what the ledger holds           order     which record may follow which, as a table
    append    how one record is added         epoch     one epoch; the point of no return is `decide`
    recover   how a new driver finishes what a dead one began
"""

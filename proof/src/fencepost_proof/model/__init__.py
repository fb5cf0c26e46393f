"""Every history of the protocol with a few faults, run against a world in memory that is worse than a real one.

world     ledger, Spark's log and state as one dictionary of facts; each effect of the protocol on it
targets   the part of it that sinks and staged rows are
lives     a driver's life: the real `recover` and `run_epoch`, with a stand-in for Spark around them
explore   all histories with at most k faults
check     what must hold after each effect, and at the end
report    many jobs in several processes
sabotage  known-bad variants that the explorer has to catch
"""

"""Every history of the protocol with a few faults, run against a world in memory that is worse than a real one.

    world     ledger, Spark's log, state, staged rows and sinks as one dictionary; each effect of the protocol on it
    lives     a driver's life: the real `recover` and `run_epoch`, with a stand-in for Spark around them
    explore   all histories with at most k faults
    check     what must hold after each effect, and at the end
    sabotage  known-bad variants that the explorer has to catch
"""

"""Random jobs: every one of them is exact, or refused before data flows.

    plans.py    a seed becomes a job: sources, what lies below the fork, branches, sinks
    runs.py     the job is started again and again: with faults, with other code; then every sink is compared
    __main__    many seeds: `make fuzz N=300 ARGS="--seed 7"`

What a sink should hold is what Spark itself computes from the whole input in one batch. For values that are drawn at
random it is an invariant: each record is in one of the two branches that share it.
"""

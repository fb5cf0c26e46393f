"""A running sum per account, one row per payment: python examples/state/running_sum.py IN OUT

IN contains files with lines like {"account": "a", "number": 1, "amount": 25}; the sums go to
OUT/running_sum.db. Both folders must exist.
"""

import sys

import fencepost as fp
from pyspark.sql import Row

folder, out = sys.argv[1:]


def add(payment: Row, state: Row | None) -> tuple[tuple[str, int, int], tuple[int]]:
    total = (state.total if state else 0) + payment.amount
    return (payment.account, payment.number, total), (total,)


job = fp.Job("running-sum", checkpoint=f"{out}/running_sum")
payments = job.read(
    fp.Files(folder, format="json", schema="account STRING, number BIGINT, amount BIGINT", max_files_per_epoch=1)
)
sums = fp.map_with_state(
    payments,
    add,
    by="account",
    order="number",  # Spark does not guarantee the order of a key's records within an epoch
    state="total BIGINT",
    output="account STRING, number BIGINT, total BIGINT",
)
job.write(sums, fp.SQLite(f"{out}/running_sum.db", table="sums"))

if __name__ == "__main__":
    job.run(until="available")

"""A running sum per account, one row per payment: python examples/state/running_sum.py IN OUT

IN has files of lines like {"account": "a", "number": 1, "amount": 25}; the sums are in OUT/running_sum.db. Both folders
must be there.
"""

import sys

import fencepost as fp

folder, out = sys.argv[1:]


def add(payment, state):
    total = (state.total if state else 0) + payment.amount
    return (payment.account, payment.number, total), (total,)


job = fp.Job("running-sum", checkpoint=f"{out}/running_sum")
payments = job.read(
    fp.Files(folder, format="json", schema="account STRING, number BIGINT, amount BIGINT", max_files_per_epoch=1)
)
sums = fp.map_with_state(
    payments,
    by="account",
    order="number",  # within an epoch a key's records come in no promised order
    state="total BIGINT",
    output="account STRING, number BIGINT, total BIGINT",
)(add)
job.write(sums, fp.SQLite(f"{out}/running_sum.db", table="sums"))

if __name__ == "__main__":
    job.run(until="available")

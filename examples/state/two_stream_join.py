"""Orders joined with their payments, whichever comes first: python examples/state/two_stream_join.py IN OUT

IN/orders has files with lines like {"id": 1, "item": "book"}, IN/payments like {"id": 1, "amount": 25}; the paid
orders go to OUT/two_stream_join.db. Whichever side comes first waits in the state for the other. IN/orders, IN/payments
and OUT must exist.
"""

import sys

import fencepost as fp
from pyspark.sql import Row

folder, out = sys.argv[1:]


def match(record: Row, state: Row | None) -> tuple[object, object]:
    item, amount = state or (None, None)
    if record.side == "order":
        item = record.item
    else:
        amount = record.amount
    if item is None or amount is None:
        return None, (item, amount)
    return (record.id, item, amount), None  # complete: forget the order


job = fp.Job("two-stream-join", checkpoint=f"{out}/two_stream_join")
orders = job.read(fp.Files(f"{folder}/orders", format="json", schema="id BIGINT, item STRING", max_files_per_epoch=1))
payments = job.read(
    fp.Files(f"{folder}/payments", format="json", schema="id BIGINT, amount BIGINT", max_files_per_epoch=1)
)
both = orders.selectExpr("'order' AS side", "*").unionByName(
    payments.selectExpr("'payment' AS side", "*"), allowMissingColumns=True
)
paid = fp.map_with_state(
    both,
    match,
    by="id",
    state="item STRING, amount BIGINT",
    output="id BIGINT, item STRING, amount BIGINT",
)
job.write(paid, fp.SQLite(f"{out}/two_stream_join.db", table="paid"))

if __name__ == "__main__":
    job.run(until="available")

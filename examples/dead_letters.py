"""Orders as JSON lines; whatever is not an order goes to a dead-letter table, in the same decision as the orders."""

from pyspark.sql import Row

import fencepost as fp

PRICES = {"apple": 0.5, "melon": 3.0}

job = fp.Job("orders", checkpoint="checkpoints/orders")
dead = fp.SQLite("orders.db", table="dead_letters")


def with_price(order: Row) -> tuple[int, str, float]:
    """Raises KeyError for an item without a price, which makes the order a dead letter."""
    return order.id, order.item, order.pieces * PRICES[order.item]


lines = job.read(fp.Files("orders", format="text"))
orders = job.parse(
    lines,
    schema="id BIGINT NOT NULL, item STRING NOT NULL, pieces INT NOT NULL",
    on_bad_record="dead_letter",
    dead_letters=dead,
)
priced = job.map(
    orders,
    with_price,
    output="id BIGINT, item STRING, price DOUBLE",
    on_bad_record="dead_letter",
    dead_letters=dead,
)
job.write(priced, fp.SQLite("orders.db", table="priced"))

if __name__ == "__main__":
    job.run(until="available")

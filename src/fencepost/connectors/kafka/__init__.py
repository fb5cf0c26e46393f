"""Kafka as a source, and as a sink whose epoch is one transaction that the driver ends after the decision.

sink         what a user writes, `fp.Kafka`: the settings of both ends
servers      where the cluster is and how to log in, as each of three clients spells it
source       reading: Spark's own connector with the options that exactly-once needs; do the topics exist, unreplaced?
messages     rows ─► key, value, headers, partition, topic
producers    write messages into an open transaction, in the driver or in the tasks (confluent-kafka)
offsets      where an epoch ends in its topics; for `fencepost as-of`
session      the driver's side: pre-commit, vote, commit, recovery
coordinator  asks about transactions and ends them, from any process (kafka-python)
fate         what became of a transaction; for recovery, `fencepost verify` and `fencepost tx` alike
verdict      who owns an open transaction, and what an operator may do with it
failure      what goes wrong with Kafka, as fencepost's errors
"""

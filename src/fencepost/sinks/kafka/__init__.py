"""Kafka as a sink: an epoch is one transaction, which the driver ends after the decision.

messages     rows ─► key, value, headers, partition, topic
producers    writes them into an open transaction (confluent-kafka)
coordinator  asks and ends transactions by name, from any process (kafka-python)
outcome      what the coordinator's answer says about a decided transaction
session      the driver's side: pre-commit, vote, commit, recovery
parallel     the same from the tasks, for outputs that outgrow one driver
"""

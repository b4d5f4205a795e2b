# make run    set up, then train the quickstart           make test    set up, then the tests (at most 15 minutes)
# make proof  a run that is killed twice, beside an undisturbed one: equal digests (at most 5 minutes)
# make check  ruff, codespell, mypy, import-linter        make verify  the full matrices (at most 75 minutes)
# make chaos  200 faults against a real run (75 minutes)  make sabotage  each protection switched off once
# make soak   5,000 iterations in 20 sessions: what grows make docs    the documentation as a site in build/site
# ARGS passes options on: make run ARGS="--set seed=1"
.PHONY: run proof test verify chaos soak sabotage check docs setup engines clean
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE :=
export DO_NOT_TRACK := true
# Tests write below the repository alone.
TEST_FOLDER := $(CURDIR)/.tmp
TEST_PYTHON := mkdir -p $(TEST_FOLDER)/home && HOME=$(TEST_FOLDER)/home TMPDIR=$(TEST_FOLDER) $(PY)
PYTEST := $(TEST_PYTHON) -m pytest -n 2 --dist loadscope --basetemp=$(TEST_FOLDER)/pytest

run: setup
	.venv/bin/yatt train configs/quickstart.yaml $(ARGS)

proof: setup
	@$(PY) -m benchmarks.proof $(ARGS)

test: engines check
	$(PYTEST) -m "not verify" $(ARGS)

verify: engines check
	@$(PY) -m tests.browser.install
	$(PYTEST) --timeout 900 $(ARGS)

chaos: setup
	@$(TEST_PYTHON) -m tests.recovery.chaos $(ARGS)

soak: setup
	@$(TEST_PYTHON) -m tests.soak.run $(ARGS)

sabotage: setup
	@$(TEST_PYTHON) -m tests.sabotage.run $(ARGS)

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/codespell
	$(PY) -m mypy
	.venv/bin/lint-imports --no-cache

# Links without a target are errors; nothing is fetched.
docs: setup
	$(PY) -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -d build/site-cache docs build/site

setup:
	@python3 ops/bootstrap.py

# The optional engines, which tests try where they are installed.
engines:
	@python3 ops/bootstrap.py --engines

clean:
	rm -rf .venv dist build *.egg-info .tmp .mypy_cache .ruff_cache

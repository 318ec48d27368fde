# `make demo` shows outlay on a small training, `make test` runs all tests and checks.
# Both need only python3, pip and make, and reuse .venv on the next call.

PYTHON ?= python3
BIN := .venv/bin
PIP := 'pip>=25.1'  # The first that installs dependency groups.
PYTEST_ARGS ?=
FUZZ_EXAMPLES ?= 60000

.PHONY: demo test check lint types unit coverage docs site bench fuzz audit dist test-lowest test-newest \
  test-repeat test-slow clean

demo: .venv/.installed
	$(BIN)/outlay demo

test: .venv/.dev-installed
	tools/system-packages
	$(MAKE) --no-print-directory check

check: lint types unit

lint: .venv/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/.dev-installed
	$(BIN)/mypy

# Four workers on two cores: those with the tests of Slurm and of Ray mostly wait.
unit: .venv/.dev-installed
	$(BIN)/coverage erase
	$(BIN)/python -m pytest -n 4 --dist loadgroup $(PYTEST_ARGS)

# In another order each time, and beside processes that keep the processors busy: no test may depend on being
# faster than something. REPEAT=5 runs them five times, SEED=N repeats an order.
test-repeat: .venv/.dev-installed
	tools/system-packages stress-ng
	tools/test-repeat $(PYTEST_ARGS)

# What takes minutes or hours, with a smaller part of each in `unit`.
test-slow: .venv/.dev-installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow --timeout 7200 $(PYTEST_ARGS)

# Not part of `check`: with coverage, the tests of the pure modules take as long as all tests without.
coverage: .venv/.dev-installed
	$(BIN)/python tools/pure-coverage

# About an hour: the same tests as in `unit`, with many more examples each.
fuzz: .venv/.dev-installed
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -n 2 tests/fuzz $(PYTEST_ARGS)

# Needs the network, and fails if no package could be queried.
audit: .venv/.dev-installed
	$(BIN)/pip install --quiet 'pip-audit>=2.7'
	$(BIN)/python tools/audit

docs: .venv/.dev-installed
	$(BIN)/python tools/write-cli-reference
	$(BIN)/python tools/write-api-reference
	$(BIN)/python tools/write-figures-reference

# Searchable pages in site/ that open offline. Zensical builds them, too: `zensical build -f .venv/site/mkdocs.yml`.
site: .venv/.docs-installed docs
	mkdir -p .venv/site
	$(BIN)/python tools/site_pages.py .venv/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet -f .venv/site/mkdocs.yml -d $(CURDIR)/site

# A wheel and a source distribution; the demo runs from that wheel in an empty environment.
dist: .venv/.dev-installed
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	PYTHON=$(PYTHON) tools/try-wheel

# Tests that use the libraries of the core and of light extras: with the lowest allowed versions, and with
# the newest.
VERSION_TESTS ?= tests/laws tests/account tests/advise/test_formulas.py tests/budget/test_config.py \
  tests/budget/test_gate.py tests/budget/test_tracker.py tests/cli tests/compat/test_[cgp]*.py tests/cost \
  tests/compat/test_monitor.py tests/test_decoding.py tests/docs/test_dependencies.py \
  tests/docs/test_documents.py tests/goodput tests/guard/test_budget_guard.py \
  tests/guard/test_cli.py tests/ledger tests/prices tests/record/test_meters.py tests/report/test_pictures.py \
  tests/report/test_run.py tests/store tests/sweep/test_aggregate.py tests/sweep/test_engines_slurm.py \
  tests/sweep/test_plan.py tests/sweep/test_run.py tests/sweep/test_whole_way.py tests/team tests/units

test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --upgrade $(PIP)
	tools/lowest-versions > .venv-lowest/constraints.txt
	.venv-lowest/bin/pip install --quiet -c .venv-lowest/constraints.txt --group dev -e '.[energy,postgres]'
	.venv-lowest/bin/python -m pytest -n 2 --dist loadgroup $(VERSION_TESTS) $(PYTEST_ARGS)

# Hydra requires an OmegaConf below the newest: tests with Hydra run with the version that pip resolves, the
# others with the newest.
test-newest:
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --upgrade $(PIP)
	.venv-newest/bin/pip install --quiet --upgrade --upgrade-strategy eager --group dev -e '.[energy,postgres]'
	.venv-newest/bin/python -m pytest -m hydra tests/budget/test_config.py tests/docs/test_documents.py
	.venv-newest/bin/pip install --quiet --upgrade --no-deps omegaconf
	.venv-newest/bin/python -m pytest -n 2 --dist loadgroup -m 'not slow and not hydra' $(VERSION_TESTS) \
	  $(PYTEST_ARGS)

# In an environment of its own: the tools that outlay is compared with bring other versions of its libraries.
bench: .venv-bench/.installed
	.venv-bench/bin/python benchmarks/run_all.py

clean:
	rm -rf .venv .venv-bench .venv-lowest .venv-newest dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet -e .
	touch $@

.venv/.dev-installed: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --upgrade $(PIP)
	$(BIN)/pip install --quiet --group dev --group docs --group test-integrations -e .
	touch $@ .venv/.installed

.venv/.docs-installed: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --upgrade $(PIP)
	$(BIN)/pip install --quiet --group docs -e .
	touch $@

.venv-bench/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --upgrade $(PIP)
	.venv-bench/bin/pip install --quiet --group dev --group docs --group test-integrations --group bench -e .
	touch $@

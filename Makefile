# make demo | make test: all that is needed from a fresh clone. PYTHON= uses an interpreter as it is (no
# environment is made, nothing is fetched): that is how the GPU machine runs gpu-check.
ifdef PYTHON
PY := $(PYTHON)
ENV :=
else
PY := .venv/bin/python
ENV := .venv/ready
endif
SOURCES := setup.py $(wildcard csrc/*/*)

.PHONY: demo test build env lint wheel gpu-check gpu-status clean

demo: build
	$(PY) -m torch_gpuprims demo

test: build
	$(PY) -m pytest

env: $(ENV)

.venv/ready: requirements.txt
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

build: torch_gpuprims/_C.so

# ninja inside compiles only what changed; both libraries come from this one command.
torch_gpuprims/_C.so: $(SOURCES) $(ENV)
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

# make demo | make test: all that is needed from a fresh clone. PYTHON= uses an interpreter as it is (no
# environment is made, nothing is fetched). GPUPRIMS_CUDA=1 insists on the CUDA library, 0 leaves it out.
# GPU record: make gpu-check PYTHON=python3 OP=topk PART=tests|sanitize|bench (no OP, no PART: all).
ifdef PYTHON
PY := $(PYTHON)
ENV :=
else
PY := .venv/bin/python
ENV := .venv/ready
endif
CLANG_FORMAT := $(if $(ENV),.venv/bin/)clang-format

# A stamp for each setting of GPUPRIMS_CUDA and the architectures: switching builds what is missing. It lists
# the libraries built, so a deleted one is built again; directories count because a removed file does.
SPACE := $(subst ,, )
STAMP := build/built-$(or $(GPUPRIMS_CUDA),auto)$(subst $(SPACE),-,$(subst ;,-,$(TORCH_CUDA_ARCH_LIST:%=-%)))
SOURCES := setup.py $(wildcard csrc/* csrc/*/*)
LISTED := $(filter torch_gpuprims/%.so,$(if $(wildcard $(STAMP)),$(shell cat $(STAMP))))
GONE := $(filter-out $(wildcard torch_gpuprims/*.so),$(LISTED))
LIBRARIES := torch_gpuprims/_C.so torch_gpuprims/_C_cuda.so
CXX_FILES := $(wildcard csrc/*/*.h csrc/*/*.cuh csrc/*/*.cpp csrc/*/*.cu tests/native/*.cpp tests/native/*.h tests/emulator/*.* tests/emulator/common/*.h)

.PHONY: demo test build env lint format wheel gpu-check gpu-libraries gpu-status clean force

demo: build
	@$(PY) -m torch_gpuprims demo

test: build
	@$(PY) -m pytest

build: $(STAMP)

$(STAMP): $(SOURCES) scripts/build.py $(ENV) $(if $(GONE),force)
	@$(PY) scripts/build.py $@

env: $(ENV)

.venv/ready: requirements.txt
	@echo "making .venv (PyTorch is a large download the first time)"
	@python3 -m venv .venv || { echo "python3 cannot make environments: apt install python3-venv"; exit 1; }
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

lint: $(ENV)
	@code=0; $(PY) -m ruff check . || code=1; $(PY) -m ruff format --check . || code=1; \
	$(PY) -m mypy torch_gpuprims || code=1; \
	mkdir -p build; $(CLANG_FORMAT) --dry-run -Werror $(CXX_FILES) 2> build/clang-format.log || { code=1; \
	grep error: build/clang-format.log | cut -d: -f1-2 | uniq; echo "make format mends these lines"; }; exit $$code

format: $(ENV)
	$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(CXX_FILES)

# One wheel for every Python >= 3.10 and PyTorch >= 2.11: dist/torch_gpuprims-*-py3-none-<platform>.whl
wheel: $(ENV)
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/*.whl

# Libraries that are there are taken as they are: the record speaks of files built elsewhere, by sha256.
gpu-check: gpu-libraries
	@$(PY) -m bench.check $(if $(OP),--op $(OP)) $(if $(PART),--part $(PART))

gpu-libraries: $(ENV)
	@test -f $(word 1,$(LIBRARIES)) -a -f $(word 2,$(LIBRARIES)) || GPUPRIMS_CUDA=1 $(PY) scripts/build.py build/built-1

gpu-status:
	@$(or $(PYTHON),python3) -m bench.record

clean:
	rm -rf build dist torch_gpuprims/*.so *.egg-info

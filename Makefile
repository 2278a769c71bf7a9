# Everything from a fresh clone: `make demo`, `make test`. Needs Python >= 3.11 and make.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
JOBS ?= auto
VENV := .venv
BIN := $(VENV)/bin
# CuPy built for CUDA 13 needs driver 580; any older driver gets the build for CUDA 12. No driver: no extra.
DRIVER := $(shell { nvidia-smi --query-gpu=driver_version --format=csv,noheader || \
	sed -n 's/.*Kernel Module.* \([0-9][0-9]*\.[0-9.][0-9.]*\)  *.*/\1/p' /proc/driver/nvidia/version; } 2>/dev/null | \
	sed -n '1s/^\([0-9][0-9]*\)\..*/\1/p')
EXTRA := $(if $(DRIVER),$(shell [ $(DRIVER) -ge 580 ] && echo cuda13 || echo cuda12))
comma := ,
# Tests start hundreds of processes: to compile what they import takes up to 0.4 s each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint format types kernel sanitize conformance bench bench-speed clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo    three networks written as assembly classify real digits (on the GPU too, where there is one)'
	@echo 'make test    all tests; GPU tests are skipped where there is no GPU'
	@echo 'make lint    ruff: rules and format          make format  apply them'
	@echo 'make types   mypy, strict'
	@echo 'make kernel  compile the CUDA kernel for sm_80 and sm_90a; needs no GPU'
	@echo 'make sanitize  every way of every hot path under compute-sanitizer, which CUDA has; needs a GPU'
	@echo 'make conformance  run ONNX'\''s own tests; writes tests/conformance/*.json and docs/conformance.md'
	@echo 'make bench   measure; writes benchmarks/results/*.json and the tables of README.md'
	@echo 'make bench-speed  the speed table alone: beside native kernels, on a GPU that torch can use'
	@echo 'make clean   remove the environment and caches'

demo: $(VENV)/.core
	@$(BIN)/python programs/demo.py

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# An editable install maps `dla` to this folder by an import hook that mypy does not see; a link shows it.
types: $(VENV)/.dev
	@mkdir -p $(VENV)/src && ln -sfn ../.. $(VENV)/src/dla
	MYPYPATH=$(VENV)/src $(BIN)/mypy -p dla.isa -p dla.assembler -p dla.compiler -p dla.emulator -p dla.profiler -m dla.onnx_backend -m dla.cli

kernel: $(VENV)/.dev
	$(BIN)/python -m dla.emulator.device.check_build

# The checked build is the one whose barriers racecheck can follow (docs/machine.md).
sanitize: $(VENV)/.dev
	for check in memcheck:fast synccheck:fast racecheck:checked; do \
	  compute-sanitizer --tool $${check%:*} --error-exitcode 1 $(BIN)/python -m pytest -q -p no:cacheprovider \
	    -m gpu -k $${check#*:} tests/emulator/device/test_hot_paths.py || exit 1; \
	done

conformance: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m conformance.run

TORCH_HAS_GPU = $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py --readme
	$(BIN)/python benchmarks/run.py --networks --readme
	@if $(TORCH_HAS_GPU); then $(MAKE) bench-speed; else echo 'no GPU that torch can use: the speed table stays'; fi

# Natives are compiled all at the same time first, and timed one by one.
bench-speed: $(VENV)/.dev
	@$(TORCH_HAS_GPU) || { echo 'the speed table needs a GPU that torch can use' >&2; exit 1; }
	$(BIN)/python benchmarks/compile_natives.py
	$(BIN)/python benchmarks/speed.py --readme

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing dla$(if $(EXTRA), with the GPU extra $(EXTRA) (driver $(DRIVER)))"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.$(if $(EXTRA),[$(EXTRA)])'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing dla with its development tools$(if $(EXTRA), and the GPU extra $(EXTRA) (driver $(DRIVER)))"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev$(if $(EXTRA),$(comma)$(EXTRA))]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'dla needs Python 3.11 or later; found $(shell python3 --version 2>&1).' \
	 'Install one, or say which: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	 echo 'dla needs Python 3.11 or later; $(PYTHON) is older (or not there).' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'Could not make $(VENV): on Debian and Ubuntu,' \
	 'apt install python3-venv.' >&2; exit 1; }

clean:
	rm -rf $(VENV) build dist dla.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

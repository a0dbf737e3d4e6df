# Identity Matters. `make` alone lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python found that is at least 3.11; PYTHON=... names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# What to compute on: auto, cpu, cuda12, cuda13 or tpu; auto looks for a TPU, then for an NVIDIA driver.
ACCEL ?= auto
ifeq ($(ACCEL),auto)
override ACCEL := $(shell \
	if [ -e /dev/accel0 ] || [ -e /dev/vfio/0 ]; then echo tpu; \
	elif v=$$(nvidia-smi 2>/dev/null | grep -o 'CUDA Version: [0-9]*' | grep -o '[0-9]*$$'); then \
		[ "$$v" -ge 13 ] && echo cuda13 || echo cuda12; \
	else echo cpu; fi)
endif

# Where runs go, their seeds, and how many run at a time (0: one per core). OVERWRITE=1 replaces runs that diverged,
# are damaged or have other settings. Recipes read these from the environment, quoted, so that no shell executes them.
RESULTS_DIR ?= results/local
SEEDS ?= 0
JOBS ?= 0
OVERWRITE ?=
DATASETS ?= cifar10
DATASET_NAMES := cifar10 cifar100 imagenet2012
DATASET ?=
DATA_DIR ?= data
RUN ?=
export RESULTS_DIR SEEDS JOBS DATASETS DATASET DATA_DIR RUN
# glibc then asks the kernel for huge pages, as docs/training.md says. Set it to nothing to do without.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# What compile-check compiles for: tpu, several slices, or one_chip.
CHECK ?= tpu
MODELS := all_conv_residual all_cnn_c resnet densenet
, := ,
VENV := .venv
MODULE := $(VENV)/bin/python -m
INSTALLED := $(VENV)/.installed-$(ACCEL)
EXPERIMENTS := $(notdir $(basename $(shell grep -l '^EXPERIMENT = ' experiments/*.py experiments/images/*.py 2>/dev/null)))

.PHONY: help setup setup-dev data test coverage lint api-docs reproduce demo reproduce-cifar10 reproduce-cifar100 \
	reproduce-cifar-small reproduce-table2 reproduce-figure1 report report-reference compare promote \
	bench bench-input bench-train compile-check compile-check-gpu cost lock clean known-datasets

help: ## list the targets
	@grep -hE '^[a-z0-9 %<>-]+:.*## ' $(MAKEFILE_LIST) | sed 's/%/<experiment>/' | \
		awk -F ':.*## ' '{sub(/ .*/, "", $$1); printf "  make %-24s %s\n", $$1, $$2}'
	@echo "  experiments: $(EXPERIMENTS)"
	@echo '  variables: ACCEL=auto|cpu|cuda12|cuda13|tpu  SEEDS="0 1 2"  JOBS=2  RESULTS_DIR=results/local'
	@echo '             DATASET=a_variant  DATASETS="cifar10 cifar100"  DATA_DIR=data  RUN=run_directory  OVERWRITE=1  PYTHON=python3'

setup: $(INSTALLED) ## create the environment .venv from the lock (other targets do so when needed)
ifneq ($(origin PYTHON),file)
	@was="$$($(VENV)/bin/python -V)"; test "$$was" = "$$($(PYTHON) -V)" || \
		{ echo "$(VENV) has $$was, but $(PYTHON) is another version; remove $(VENV) first"; exit 2; }
endif

setup-dev: $(INSTALLED)-dev ## the same, with the packages for tests and style checks

# install(environment, lock): creates or updates an environment with the packages of a lock. Locks are
# complete, so no dependencies are resolved.
define install
	@test -n "$(PYTHON)" || { echo "no Python of at least 3.11 found; name one: make PYTHON=..."; exit 2; }
	@test -f $(2) || { echo "there is no $(2); ACCEL must be auto, cpu, cuda12, cuda13 or tpu"; exit 2; }
	@echo "installing $(2) into $(1); a minute or two"
	@if command -v uv >/dev/null; then \
		uv venv --quiet --allow-existing --python "$(PYTHON)" $(1); \
		uv pip install --quiet --python $(1) --no-deps --requirement $(2); \
		uv pip install --quiet --python $(1) --no-deps --editable .; \
	else \
		"$(PYTHON)" -m venv $(1); \
		$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement $(2); \
		$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .; \
	fi
endef

$(INSTALLED): $(wildcard requirements/$(ACCEL).txt) setup.cfg pyproject.toml
	$(call install,$(VENV),requirements/$(ACCEL).txt)
	@rm -f $(VENV)/.installed-*
	@touch $@

$(INSTALLED)-dev: requirements/dev.txt $(INSTALLED)
	$(call install,$(VENV),requirements/dev.txt)
	@touch $@

# Separate environments: for TensorFlow, which prepares data, and for the accelerators' compilers.
$(VENV)-%/.installed: requirements/%.txt setup.cfg pyproject.toml
	$(call install,$(VENV)-$*,$<)
	@touch $@

# Refuses unknown names before TensorFlow is installed for nothing.
known-datasets:
	@for name in $${DATASETS//,/ }; do case " $(DATASET_NAMES) " in *" $$name "*) ;; \
		*) echo "no data set '$$name' to prepare; there are $(DATASET_NAMES)"; exit 2;; esac; done

data: known-datasets $(VENV)-prepare/.installed ## download and decode data sets: make data DATASETS="cifar10 cifar100"
	$(VENV)-prepare/bin/python -m experiments.images.prepare_data --datasets="$$DATASETS" --data_dir="$$DATA_DIR"

test: setup-dev ## run the tests
	$(MODULE) pytest

coverage: setup-dev ## run the tests and report which lines of the library they miss
	$(MODULE) pytest --cov

lint: setup-dev ## check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck .ci/run clusters/*.sh

api-docs: setup-dev ## write the library's API as web pages to site/
	$(MODULE) pdoc --math --docformat google -o site identity_matters

REPRODUCE := $(MODULE) experiments.reproduce --results_dir="$$RESULTS_DIR" --seeds="$$SEEDS" --jobs="$$JOBS" \
	$(if $(OVERWRITE),--overwrite)

reproduce: setup ## run every experiment that has no finished run yet, in parallel, then write the report
	$(if $(filter-out cpu,$(ACCEL)),$(MAKE) data DATASETS="cifar10 cifar100" || true)
	@$(REPRODUCE) --report

demo: setup ## run the quickest variant of each quick experiment, then write the report: two minutes
	@$(REPRODUCE) --demo --report

reproduce-%: setup ## run one experiment for each seed of SEEDS; DATASET=... names a variant
	@$(REPRODUCE) --only=$(subst -,_,$*) $(if $(DATASET),--variants="$$DATASET")

reproduce-cifar10 reproduce-cifar100: reproduce-%: setup ## Table 2, CIFAR-10 (or ...-cifar100): needs an accelerator
	@$(REPRODUCE) --only=cifar --variants=$*/all_conv_residual

reproduce-cifar-small: setup ## smaller CIFAR nets than Table 2's: about 11 hours on two cores
	@$(REPRODUCE) --only=cifar --variants=cifar10/small,cifar10/small_scaled,cifar100/small,cifar100/small_scaled

reproduce-table2: setup ## the CIFAR columns of Table 2, all rows: needs an accelerator and many hours
	@$(REPRODUCE) --only=cifar \
		--variants=$(subst $(eval) ,$(,),$(foreach d,cifar10 cifar100,$(foreach m,$(MODELS),$d/$m)))

reproduce-figure1: reproduce-cifar10 reproduce-cifar100 ## Figure 1, training and test error over steps
	$(MODULE) experiments.report --results_dir="$$RESULTS_DIR"

report: setup ## write the report of reference and local runs to results/local/
	$(MODULE) experiments.report --results_dir="$$RESULTS_DIR"

report-reference: setup ## rewrite the committed report and the README's results from results/reference alone
	$(MODULE) experiments.report --reference_only

compare: setup ## print paper | reference | yours; fails if a run contradicts the reference or cannot be read
	@$(MODULE) experiments.compare --results_dir="$$RESULTS_DIR"

promote: setup ## copy a finished run into results/reference: make promote RUN=results/local/...
	@test -n "$$RUN" || { echo "name the run: make promote RUN=results/local/EXPERIMENT/VARIANT/seed=0"; exit 2; }
	$(MODULE) experiments.promote "$$RUN"

bench: setup ## time the core computations against bare matrix products
	$(MODULE) benchmarks.linear --results_dir="$$RESULTS_DIR" --overwrite
	$(MODULE) benchmarks.memorize --results_dir="$$RESULTS_DIR" --overwrite

$(VENV)-torch/.installed:
	if command -v uv >/dev/null; then \
		uv venv --quiet --allow-existing --python "$(PYTHON)" $(@D); \
		uv pip install --quiet --python $(@D) --torch-backend=auto torch; \
	else \
		$(PYTHON) -m venv $(@D); \
		$(@D)/bin/python -m pip install --quiet --disable-pip-version-check torch; \
	fi
	touch $@

bench-input: setup ## speed of ImageNet's input pipeline against the bare decoder
	$(MODULE) benchmarks.input_pipeline --results_dir="$$RESULTS_DIR" --overwrite

bench-train: setup $(VENV)-torch/.installed ## training speed against PyTorch, which it installs (large)
	$(MODULE) benchmarks.train_step --config=:$(if $(filter cpu,$(ACCEL)),cpu,gpu) \
		--results_dir="$$RESULTS_DIR" --overwrite

compile-check: $(VENV)-tpu/.installed ## compile the trainings for TPUs, without a TPU: takes hours, resumes
	JAX_PLATFORMS=cpu $(VENV)-tpu/bin/python -m benchmarks.compile_check \
		--config=:$(CHECK) --results_dir="$$RESULTS_DIR" $(if $(PROGRAMS),'--config.programs=$(PROGRAMS)')

compile-check-gpu: $(VENV)-cuda12/.installed ## compile the paper's net for GPUs, without a GPU, by private calls of JAX
	JAX_PLATFORMS=cpu $(VENV)-cuda12/bin/python -m benchmarks.compile_check --config=:gpu \
		--results_dir="$$RESULTS_DIR"

cost: setup ## write docs/cost.md from the promoted runs of compile-check
	$(MODULE) benchmarks.cost results/reference/benchmark_compile_check/*/seed=0

UV := $(shell command -v uv || echo $(VENV)-uv/bin/uv)
# pyarrow is for features of TFDS that nothing here uses, and it is the second-largest package.
COMPILE = $(UV) pip compile setup.cfg --quiet --universal --python-version 3.11 --upgrade \
	--no-annotate --no-header --no-emit-package pyarrow

$(VENV)-uv/bin/uv:
	$(PYTHON) -m venv $(VENV)-uv
	$(VENV)-uv/bin/python -m pip install --quiet uv

lock: $(UV) ## re-resolve the requirements and rewrite the locks
	$(COMPILE) --extra imagenet -o requirements/cpu.txt
	for accel in cuda12 cuda13 tpu; do \
		$(COMPILE) --extra imagenet --extra $$accel -o requirements/$$accel.txt; \
	done
	$(COMPILE) --extra prepare -o requirements/prepare.txt
	$(COMPILE) --extra imagenet --extra dev -c requirements/cpu.txt -o requirements/dev.txt.tmp
	grep -vxFf requirements/cpu.txt requirements/dev.txt.tmp > requirements/dev.txt
	rm requirements/dev.txt.tmp

clean: ## remove the environments and results/local
	rm -rf $(VENV) $(addprefix $(VENV)-,prepare torch tpu cuda12 uv) results/local

# Identity Matters. `make` alone lists the targets. Works with GNU make 3.81, that of every Mac.
#
# No variable of the user's is ever executed, wherever it comes from. Recipes read it from the
# environment, quoted; make itself only compares it with known words. These first lines take care of
# the command line: make would expand what it exports, and now exports the text as it was given.
override COMMAND_LINE := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
$(foreach name,$(COMMAND_LINE),$(eval override $(subst $$,$$$$,$(name)) := $$(value $(subst $$,$$$$,$(name))))$(eval export $(subst $$,$$$$,$(name))))
# All variables that make expands below are ours; `override` also wins over the command line.
override SHELL := /bin/bash
override .DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The user's variables. Where runs go, their seeds, and how many run at a time (0: one per core).
RESULTS_DIR ?= results/local
SEEDS ?= 0
JOBS ?= 0
# Data sets to prepare, and where; the variant, or all of a data set's, to reproduce; the run to promote.
DATASETS ?= cifar10
DATA_DIR ?= data
VARIANT ?=
RUN ?=
# The name of VARIANT before 0.2: understood until 0.3, with a note.
DATASET ?=
# The variant of compile-check (tpu, one_chip, one_chip_rivals or theory), that of compile-check-gpu
# (gpu, gpu_rivals or theory_gpu), and which programs of the first.
CHECK ?= tpu
CHECK_GPU ?= gpu
PROGRAMS ?=
# 1 runs also those runs anew that are finished, and replaces them.
OVERWRITE ?= 0
# What to compute on; auto looks for a TPU, then for an NVIDIA GPU.
ACCEL ?= auto
# glibc then asks the kernel for huge pages, as docs/training.md says. Set it to nothing to do without.
GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
override EXPORTED := RESULTS_DIR SEEDS JOBS DATASETS DATA_DIR VARIANT DATASET RUN CHECK CHECK_GPU PROGRAMS GLIBC_TUNABLES
export $(EXPORTED)

# SEED=1 would leave SEEDS at its default, so what is one of these but for an S is refused.
override KNOWN := $(EXPORTED) OVERWRITE ACCEL
override MISSPELT := $(filter $(patsubst %S,%,$(KNOWN)) $(addsuffix S,$(KNOWN)) RESULT_DIR,$(COMMAND_LINE))
override MISSPELT := $(filter-out $(KNOWN),$(MISSPELT))
ifneq (,$(MISSPELT))
$(error there is no variable $(firstword $(MISSPELT)); `make` lists the variables)
endif

# The first Python found that is at least 3.11; PYTHON=... names another.
override PYTHON_IS_GIVEN := $(filter-out undefined,$(origin PYTHON))
ifeq (,$(PYTHON_IS_GIVEN))
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
endif
export PYTHON

override LOCKS := cpu cuda12 cuda13 tpu
override DATASET_NAMES := cifar10 cifar100 imagenet2012
override MODELS := all_conv_residual all_cnn_c resnet densenet
override VENV := .venv
override MODULE := $(VENV)/bin/python -m
override EXPERIMENTS := $(notdir $(basename $(shell grep -l '^EXPERIMENT = ' experiments/*.py experiments/images/*.py)))

# One of LOCKS; empty if ACCEL is no such word, or if the hardware needs a decision.
ifeq (auto,$(value ACCEL))
override LOCK := $(shell requirements/accelerator.sh 2>/dev/null)
else
override LOCK := $(if $(word 2,$(value ACCEL)),,$(filter $(LOCKS),$(value ACCEL)))
endif
override INSTALLED := $(VENV)/.installed-$(or $(LOCK),none)
# ACCEL=cpu is the user's word that an accelerator, if there is one, is not to be used.
ifeq (cpu,$(value ACCEL))
JAX_PLATFORMS ?= cpu
export JAX_PLATFORMS
endif

override OVERWRITE_FLAG := $(if $(filter 1 yes true,$(value OVERWRITE)),--overwrite)
override OVERWRITE_IS_WRONG := $(filter-out 0 no false 1 yes true,$(value OVERWRITE))

.PHONY: help setup setup-dev data test test-fast coverage lint docs reproduce demo reproduce-cifar10 reproduce-cifar100 \
	reproduce-cifar-small reproduce-table2 reproduce-figure1 report report-reference compare promote \
	bench bench-input bench-train compile-check compile-check-gpu cost lock clean clean-results \
	known-datasets known-overwrite accelerator-data

help: ## list the targets
	@grep -hE '^[a-z0-9 %<>-]+:.*## ' Makefile | sed 's/%/<experiment>/' | \
		awk -F ':.*## ' '{sub(/ .*/, "", $$1); printf "  make %-24s %s\n", $$1, $$2}'
	@echo "  experiments: $(EXPERIMENTS)"
	@echo '  variables: ACCEL=auto|cpu|cuda12|cuda13|tpu  SEEDS="0 1 2"  JOBS=2  RESULTS_DIR=results/local'
	@echo '             VARIANT=a_variant  DATASETS="cifar10 cifar100"  DATA_DIR=data  RUN=run_directory  PYTHON=python3'
	@echo '             OVERWRITE=1 (runs finished runs anew, too, and replaces them)'

setup: $(INSTALLED) ## create the environment .venv from the lock (other targets do so when needed)
ifneq (,$(PYTHON_IS_GIVEN))
	@was="$$($(VENV)/bin/python -V)"; test "$$was" = "$$("$$PYTHON" -V)" || \
		{ echo "$(VENV) has $$was, but $$PYTHON is another version; remove $(VENV) first" >&2; exit 2; }
endif

setup-dev: $(INSTALLED)-dev ## the same, with the packages for tests and style checks

# Without a lock there is no environment: this says why.
$(VENV)/.installed-none:
ifeq (auto,$(value ACCEL))
	@requirements/accelerator.sh
else
	@echo "ACCEL must be auto, cpu, cuda12, cuda13 or tpu" >&2; exit 2
endif

ifneq (,$(LOCK))
$(INSTALLED): requirements/$(LOCK).txt setup.cfg pyproject.toml
ifeq (auto,$(value ACCEL))
	@requirements/accelerator.sh >/dev/null
endif
	@requirements/install.sh $(VENV) $(LOCK) && rm -f $(VENV)/.installed-* && touch $@
endif

$(INSTALLED)-dev: requirements/dev.txt $(INSTALLED)
	@requirements/install.sh $(VENV) dev && touch $@

# Separate environments: for TensorFlow, which prepares data, for the accelerators' compilers, and for the site.
$(patsubst %,$(VENV)-%/.installed,prepare tpu cuda12 docs): $(VENV)-%/.installed: requirements/%.txt setup.cfg pyproject.toml
	@requirements/install.sh $(VENV)-$* $* && touch $@

# Refuses unknown names before TensorFlow is installed for nothing.
known-datasets:
	@for name in $${DATASETS//,/ }; do case " $(DATASET_NAMES) " in *" $$name "*) ;; \
		*) echo "no data set '$$name' to prepare; there are $(DATASET_NAMES)" >&2; exit 2;; esac; done

data: known-datasets $(VENV)-prepare/.installed ## download and decode data sets: make data DATASETS="cifar10 cifar100"
	$(VENV)-prepare/bin/python -m experiments.images.prepare_data --datasets="$$DATASETS" --data_dir="$$DATA_DIR"

test: setup-dev ## run the tests
	$(MODULE) pytest

test-fast: setup-dev ## run the tests that train nothing and start no process: a minute
	$(MODULE) pytest -m "not slow"

coverage: setup-dev ## run the tests and report which lines of the library they miss
	$(MODULE) pytest --cov

lint: setup-dev ## check style and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/shellcheck .ci/run clusters/*.sh requirements/*.sh

docs: $(VENV)-docs/.installed ## write docs/, the report and the API as one site with search to site/, and check its links
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/python -m mkdocs build
	@echo "open site/index.html; to search it, serve it: $(VENV)-docs/bin/python -m http.server --directory site"

override REPRODUCE := $(MODULE) experiments.reproduce --results_dir="$$RESULTS_DIR" --seeds="$$SEEDS" --jobs="$$JOBS" $(OVERWRITE_FLAG)

known-overwrite:
	@$(if $(OVERWRITE_IS_WRONG),echo "OVERWRITE must be 0 or 1" >&2; exit 2,:)

# What the trainings of `make reproduce` read on an accelerator. Without it, all others run.
accelerator-data:
	-@requirements/install.sh $(VENV)-prepare prepare && touch $(VENV)-prepare/.installed && \
		$(VENV)-prepare/bin/python -m experiments.images.prepare_data --datasets="cifar10 cifar100" --data_dir="$$DATA_DIR"

reproduce: known-overwrite setup $(if $(filter-out cpu,$(LOCK)),accelerator-data) ## run every experiment that has no finished run yet, in parallel, then write the report
	@$(REPRODUCE) --report

demo: known-overwrite setup ## run the quickest variant of each quick experiment, then write the report: two minutes
	@$(REPRODUCE) --demo --report

# The experiment that the target names, if there is one of that name: only our own words go on.
override NAMED = $(if $(word 2,$*),,$(filter $(EXPERIMENTS),$(subst -,_,$*)))
reproduce-%: known-overwrite setup ## run one experiment for each seed of SEEDS; VARIANT=a,b names variants
	@$(if $(NAMED),:,echo "there is no experiment of this name; there are $(EXPERIMENTS)" >&2; exit 2)
	@test -z "$$DATASET" || echo "DATASET= is now called VARIANT=, and will not be understood from 0.3 on" >&2
	@variant="$${VARIANT:-$$DATASET}"; $(REPRODUCE) --only=$(NAMED) $${variant:+--variants="$$variant"}

reproduce-cifar10 reproduce-cifar100: reproduce-%: known-overwrite setup ## Table 2, CIFAR-10 (or ...-cifar100): needs an accelerator
	@$(REPRODUCE) --only=cifar --variants=$*/all_conv_residual

reproduce-cifar-small: known-overwrite setup ## smaller CIFAR nets than Table 2's: about 11 hours on two cores
	@$(REPRODUCE) --only=cifar --variants=cifar10/small,cifar10/small_scaled,cifar100/small,cifar100/small_scaled

override COMMA := ,
override EMPTY :=
override SPACE := $(EMPTY) $(EMPTY)
override TABLE2 := $(foreach data,cifar10 cifar100,$(foreach model,$(MODELS),$(data)/$(model)))
reproduce-table2: known-overwrite setup ## the CIFAR columns of Table 2, all rows: needs an accelerator and many hours
	@$(REPRODUCE) --only=cifar --variants=$(subst $(SPACE),$(COMMA),$(TABLE2))

reproduce-figure1: reproduce-cifar10 reproduce-cifar100 ## Figure 1, training and test error over steps: needs an accelerator
	$(MODULE) experiments.report --results_dir="$$RESULTS_DIR"

report: setup ## write the report of reference and local runs to results/local/
	$(MODULE) experiments.report --results_dir="$$RESULTS_DIR"

report-reference: setup ## rewrite the committed report and the README's results from results/reference alone
	$(MODULE) experiments.report --reference_only

compare: setup ## print paper | reference | yours; fails if a run contradicts the reference or cannot be read
	@$(MODULE) experiments.compare --results_dir="$$RESULTS_DIR"

promote: setup ## copy a finished run into results/reference: make promote RUN=results/local/...
	@test -n "$$RUN" || { echo "name the run: make promote RUN=results/local/EXPERIMENT/VARIANT/seed=0" >&2; exit 2; }
	$(MODULE) experiments.promote "$$RUN"

bench: setup ## time the core computations against bare matrix products
	$(MODULE) benchmarks.linear --results_dir="$$RESULTS_DIR" --overwrite
	$(MODULE) benchmarks.memorize --results_dir="$$RESULTS_DIR" --overwrite

override TORCH := torch==2.14.1
$(VENV)-torch/.installed:
	if command -v uv >/dev/null; then \
		uv venv --quiet --allow-existing --python "$$PYTHON" $(@D) && \
		uv pip install --quiet --python $(@D) --torch-backend=auto $(TORCH); \
	else \
		"$$PYTHON" -m venv $(@D) && \
		PIP_USER=0 $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH); \
	fi && touch $@

bench-input: setup ## speed of ImageNet's input pipeline against the bare decoder
	$(MODULE) benchmarks.input_pipeline --results_dir="$$RESULTS_DIR" --overwrite

bench-train: setup $(VENV)-torch/.installed ## training speed against PyTorch, which it installs (large)
	$(MODULE) benchmarks.train_step --config=:$(if $(filter cpu,$(LOCK)),cpu,gpu) \
		--results_dir="$$RESULTS_DIR" --overwrite

compile-check: $(VENV)-tpu/.installed ## compile the trainings for TPUs, without a TPU: takes hours, resumes
	JAX_PLATFORMS=cpu $(VENV)-tpu/bin/python -m benchmarks.compile_check --config=:"$$CHECK" \
		--results_dir="$$RESULTS_DIR" $${PROGRAMS:+--config.programs="$$PROGRAMS"}

compile-check-gpu: $(VENV)-cuda12/.installed ## compile trainings for GPUs, without a GPU, through private functions of JAX
	JAX_PLATFORMS=cpu $(VENV)-cuda12/bin/python -m benchmarks.compile_check --config=:"$$CHECK_GPU" \
		--results_dir="$$RESULTS_DIR"

cost: setup ## write docs/cost.md from the promoted runs of compile-check
	$(MODULE) benchmarks.cost results/reference/benchmark_compile_check/*/seed=0

override RESOLVE := PATH="$$PATH:$$PWD/$(VENV)-uv/bin" uv pip compile --quiet --universal --python-version 3.11 \
	--upgrade --generate-hashes --no-annotate --no-header
override COMPILE := $(RESOLVE) setup.cfg
# TFDS asks for pyarrow, the second-largest package; reading what it has prepared does without it.
override COMPILE_LEAN := $(COMPILE) --no-emit-package pyarrow

override UV := uv==0.13.9
$(VENV)-uv/bin/uv:
	"$$PYTHON" -m venv $(VENV)-uv && PIP_USER=0 $(VENV)-uv/bin/python -m pip install --quiet $(UV)

lock: $(if $(shell command -v uv),,$(VENV)-uv/bin/uv) ## re-resolve the requirements and rewrite the locks
	$(COMPILE_LEAN) --extra imagenet -o requirements/cpu.txt
	$(COMPILE_LEAN) --extra imagenet --extra cuda12 -o requirements/cuda12.txt
	$(COMPILE_LEAN) --extra imagenet --extra cuda13 -o requirements/cuda13.txt
	$(COMPILE_LEAN) --extra imagenet --extra tpu -o requirements/tpu.txt
	$(COMPILE) --extra prepare -o requirements/prepare.txt
	$(COMPILE_LEAN) --extra imagenet --extra dev -c requirements/cpu.txt \
		$$(sed -n 's/==.*//p' requirements/cpu.txt | sort -u | sed 's/^/--no-emit-package /') -o requirements/dev.txt
	$(RESOLVE) --group docs -o requirements/docs.txt

clean: ## remove the environments and caches; runs and data stay
	rm -rf $(VENV) $(addprefix $(VENV)-,prepare torch tpu cuda12 docs uv) site build *.egg-info \
		.mypy_cache .pytest_cache .ruff_cache .coverage .coverage.*
	find benchmarks experiments identity_matters tests -name __pycache__ -prune -exec rm -rf {} +

clean-results: ## print the command that deletes your runs, among them trained nets; it deletes nothing
	@echo "these runs and their checkpoints took their time; to delete them: rm -r results/local"

# `make demo` and `make test` build .venv from pinned requirements first, and again only when these or Python change.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-seeds demo-slurm demo-triples lint test test-all test-heavy test-slurm clean

PYTHON ?= python3
REQUIREMENTS := envs/cpu.txt
TEST_ONLY := envs/test-only.txt
VENV := .venv
PLUGIN := plugins/snakemake-executor-plugin-determined

# "HASH HASH HASH INTERPRETER", empty if PYTHON is missing or too old. Hashes are of contents, so that neither `touch` nor a fresh clone
# matters; the interpreter is the one beneath an activated environment, because .venv is deleted before it is rebuilt.
IDENTITY := $(shell $(PYTHON) -c 'import hashlib, os, sys; read = lambda name: open(name, "rb").read(); \
  sys.version_info >= (3, 11) and print(*(hashlib.sha256(sys.version.encode() + part).hexdigest()[:16] for part in ( \
  read("$(REQUIREMENTS)"), read("$(PLUGIN)/pyproject.toml") + os.getcwd().encode(), read("$(TEST_ONLY)"))), sys._base_executable)' 2>/dev/null)
STAMP := $(VENV)/.installed-$(or $(word 1,$(IDENTITY)),never)
# The Snakemake plugin, installed as the path of its sources: again if that moves, or if its pyproject.toml changes.
PLUGIN_STAMP := $(VENV)/.plugin-$(or $(word 2,$(IDENTITY)),never)
# Only for tests, outside the environment's packages: nothing else may import it.
TEST_ONLY_STAMP := $(VENV)/test-only/.installed-$(or $(word 3,$(IDENTITY)),never)

# Two makes at once: the second waits, then finds the stamp. Without flock (macOS) run one at a time.
LOCKED := $(if $(shell command -v flock),flock $(REQUIREMENTS))

help:
	@echo "make demo    the whole study, small, on this machine's CPU; ends with its summary"
	@echo "make demo-triples   the demo on three fresh triples of seeds, and the README's table"
	@echo "make demo-seeds     the demo with five training seeds and four trials of every item: what its verdict can say"
	@echo "make test    lint and tests, minutes"
	@echo "make test-heavy   what makes studies of its own: the matrix of reruns, the double of Determined, the choice on dev"
	@echo "make test-all     all three, what continuous integration runs"
	@echo "make test-slurm   the profile \`gpu\` on a real Slurm of one node: root, Debian packages slurmctld slurmd slurm-client munge"
	@echo "make demo-slurm   the demo through that Slurm, its model processes submitted as GPU jobs"
	@echo "make clean   remove results/demo, nothing else"
	@echo "PYTHON=...   interpreter to build $(VENV) with, 3.11 or newer (default: python3)"

# Commands of rules find `python` on PATH, so .venv comes first there.
demo: $(PLUGIN_STAMP)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/snakemake --profile profiles/demo

# The same study under another name, submitted with the profile's own settings to a Slurm that is up for as long as this takes.
demo-slurm: $(PLUGIN_STAMP)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; export PATH; trap 'python tests/cluster/slurm_cluster.py stop' EXIT; python tests/cluster/slurm_cluster.py start && \
	snakemake --profile gpu --configfile config.yaml profiles/demo/study.yaml --config study=demo-slurm --default-resources mem_mb=2000 runtime=30

# Seeds of tasks, SFT and GRPO that the search for the recipe never saw; the base stays the same.
TRIPLES := 21 22 23
demo-triples: $(PLUGIN_STAMP)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; export PATH; set -e; for seed in $(TRIPLES); do \
	  $(VENV)/bin/snakemake --profile profiles/demo --config study=demo-$$seed "tasks={seed: $$seed}" "training={seeds: [$$seed]}" \
	    "demo_policy={sft: {seed: $$seed}}"; done; \
	python scripts/tabulate_studies.py $(TRIPLES:%=results/demo-%) --out benchmarks/demo/triples

# As many training seeds as a verdict asks for. Tasks, SFT and training have seeds that the search for the recipe never saw.
demo-seeds: $(PLUGIN_STAMP)
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/snakemake --profile profiles/demo --config study=demo-seeds "tasks={seed: 31}" \
	  "training={seeds: [31, 32, 33, 34, 35]}" "evaluation={trials: 4}" "demo_policy={sft: {seed: 31}}"

lint: $(PLUGIN_STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@said=$$(PYTHONPATH=scripts $(VENV)/bin/lint-imports --no-cache) || { echo "$$said"; exit 1; }

# Two processes; a file's tests stay together, for they share what is slow to make.
PYTEST = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m pytest
test: lint $(TEST_ONLY_STAMP)
	@$(PYTEST) -n 2 --dist loadfile -m "not slurm and not heavy"

test-heavy: $(PLUGIN_STAMP) $(TEST_ONLY_STAMP)
	@$(PYTEST) -n 2 --dist loadfile -m "heavy and not slurm"

test-slurm: $(PLUGIN_STAMP)
	@$(PYTEST) -m slurm

test-all: test-slurm test-heavy test

clean:
	rm -rf results/demo

# The stamp comes last: an interrupted or failed installation leaves none.
$(STAMP):
ifeq ($(IDENTITY),)
	@echo "'$(PYTHON)' is missing or older than Python 3.11; give one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1
else
	@$(LOCKED) sh -ec 'test ! -e $@ || exit 0; \
	  echo "Installing $(REQUIREMENTS) into $(VENV): once, about a minute"; \
	  rm -rf $(VENV); \
	  $(lastword $(IDENTITY)) -m venv $(VENV); \
	  $(VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $(REQUIREMENTS); \
	  touch $@'
endif

PIP_INSTALL := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps
$(PLUGIN_STAMP): $(STAMP)
	@$(LOCKED) sh -ec 'test ! -e $@ || exit 0; $(PIP_INSTALL) --no-build-isolation -e $(PLUGIN); rm -f $(VENV)/.plugin-*; touch $@'

$(TEST_ONLY_STAMP): $(STAMP)
	@$(LOCKED) sh -ec 'test ! -e $@ || exit 0; rm -rf $(@D); $(PIP_INSTALL) --target $(@D) -r $(TEST_ONLY); touch $@'

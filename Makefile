# SPDX-License-Identifier: GPL-2.0-or-later
#
# A thin front: each target sets up what it needs and calls the kstall command.

KERNEL ?=
# More than one, with blanks between; a path with blanks is for KERNEL.
KERNELS ?=
SERIES ?=
# Not from the environment, where they are often something else's.
VERSION = 1
ARCH =
# A file that names trees, series, architectures and levels.
MATRIX =
WORKERS =
# Where the report of a run is published.
REPORT =
KUNIT =
RESUME =
AGAIN =
LEVEL ?= full
N ?= 20
LOAD = 2 4
PYTHON ?=
# Handed on by the environment, as they were given: a path or a branch's name is code
# neither of the shell nor of make.
$(foreach name,PYTHON KERNEL KERNELS SERIES VERSION MATRIX WORKERS REPORT, \
	$(eval override $(name) := $$(value $(name))))
export PYTHON KERNEL KERNELS SERIES VERSION LEVEL MATRIX WORKERS REPORT
unexport ARCH
export KSTALL_ARCH = $(ARCH)

ifeq ($(filter quick full deep,$(LEVEL)),)
$(error LEVEL=$(LEVEL): choose quick, full or deep)
endif

# A matrix has levels of its own, unless one is asked for.
own_level = $(and $(MATRIX),$(filter file,$(origin LEVEL)))

kstall = .venv/bin/kstall

.DEFAULT_GOAL := help
.PHONY: help node setup validate series stability test lint clean

help: ## this text
	@echo 'usage: make TARGET [KERNEL=path|repo#branch|debian:X.Y] [SERIES="a b"] [LEVEL=quick|full|deep]'
	@echo '       validate also takes KERNELS="debian:7.3 debian:7.2" for more than one,'
	@echo '       or MATRIX=FILE, which names trees, architectures and levels; WORKERS=2, AGAIN=1'
	@echo '       setup and validate take ARCH=arm64, stability N=20 LOAD="2 4", KUNIT=200 or RESUME=1'
	@echo '       and series takes VERSION=2 and REPORT=URL, where its report is published'
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 14

setup: ## install what is missing: Debian packages (as root), .venv
	@scripts/setup.sh

validate: setup ## prove the series on a booted kernel (LEVEL=quick: but for costs; deep: all)
	@set -f; set -- $${KERNEL:+--kernel "$$KERNEL"}; \
	for kernel in $$KERNELS; do set -- "$$@" --kernel "$$kernel"; done; \
	set -- "$$@" $${MATRIX:+--matrix "$$MATRIX"} $${WORKERS:+--workers "$$WORKERS"}; \
	set -- "$$@" $${KSTALL_ARCH:+--arch "$$KSTALL_ARCH"}; \
	$(kstall) validate $(if $(own_level),,--level $(LEVEL)) $(if $(AGAIN),--again) \
		"$$@" -- $$SERIES

series: setup ## write proven series as mails, with VERSION=2 for a later version
	@$(kstall) series $${KERNEL:+--kernel "$$KERNEL"} --version "$$VERSION" \
		$${REPORT:+--report-url "$$REPORT"} -- $$SERIES

stability: export KSTALL_BUSY = 1
stability: setup ## boot N=20 guests of SERIES on a busy host, LOAD="2 4" times its processors
	@$(kstall) stability --runs $(N) $(KUNIT:%=--kunit %) $(LOAD:%=--load %) \
		$(if $(RESUME),--resume) $${KERNEL:+--kernel "$$KERNEL"} -- $$SERIES

test: ## lint, unit, faults, live (LEVEL=quick: no boot; deep: all), told apart
	@$(MAKE) -s lint || { \
		echo 'lint    FAIL, so no tests were run: unit, faults, live, deep'; exit 1; }
	@.venv/bin/pytest -n auto --maxprocesses 8 \
		$(if $(filter quick,$(LEVEL)),-m 'not live and not deep') \
		$(if $(filter full,$(LEVEL)),-m 'not deep')

SHELL_SCRIPTS = .ci/run scripts/setup.sh harness/kstall/*/*.sh docs/examples/ci/*.sh \
	$(shell grep -lE '^\#!/bin/(ba)?sh' scripts/workloads/*/*)

lint: export KSTALL_LINT = 1
lint: setup ## check style and types
	@.venv/bin/ruff check -q
	@.venv/bin/ruff format -q --check
	@.venv/bin/mypy --no-error-summary
	@for file in patches/*/checks.py; do .venv/bin/mypy --no-error-summary $$file || exit; done
	@if ! command -v shellcheck >/dev/null; then \
		echo 'lint    ok, but there is no shellcheck: shell scripts were not checked'; \
	else shellcheck $(SHELL_SCRIPTS) && echo 'lint    ok'; fi

node: ## the recorder for operators' nodes, as one file: out/kstall-node
	@mkdir -p out/node
	@rm -rf out/node/kstall_node && cp -r harness/kstall_node out/node/
	@rm -rf out/node/kstall_node/__pycache__
	@python3 -m zipapp out/node -m kstall_node.__main__:run -p '/usr/bin/env python3' \
		-c -o out/kstall-node
	@chmod 755 out/kstall-node
	@rm -r out/node
	@echo out/kstall-node

clean: ## remove .venv and out/; the cache is left, `rm -r ~/.cache/kstall` clears it
	@rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache harness/*.egg-info

# make quickstart   set everything up and build the first image
# make test         the checks and the tests, on a real engine
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help quickstart test test-slow test-full test-fast test-lowest test-fuzz test-mutants test-gpu coverage check format setup engine engine-stop bench reference docs wheel clean

# Python keeps what it compiles, whatever the environment says: the tests import it in many processes.
export PYTHONDONTWRITEBYTECODE :=

READY := .venv/.ready
BUILDER := .venv/bin/builder

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo "make setup        .venv with the program, from uv.lock: .venv/bin/builder"
	@echo "make test-fast    the tests that need no engine and little time, those of what changed first"
	@echo "make test-slow    the tests that take long: more images with a real vLLM, planted faults, several machines"
	@echo "make test-full    all, also each command ended at every place, arm64, the CUDA wheels (40 GB of disk)"
	@echo "make test-lowest  those tests with the lowest version of each package that pyproject.toml allows"
	@echo "make test-fuzz    10,000 damaged files of each kind that is read"
	@echo "make test-mutants whether tests notice small changes of numbers, lock, plan, rollback and prune: hours"
	@echo "make coverage     every test, and which lines and branches they reach"
	@echo "make test-gpu     the shipped mods on this machine's GPU, up to 50 minutes: IMAGE=NAME:N, or PYTHON=PATH with a vLLM"
	@echo "make check        linters, types and the import rules"
	@echo "make engine       start a private Docker engine where none answers (root)"
	@echo "make engine-stop  end it"
	@echo "make wheel        the wheel in dist/, with which no clone is needed"
	@echo "make bench        measure everything, about an hour, and write docs/benchmarks.md (root)"
	@echo "make reference    write docs/reference and the schema of images.lock from the program"
	@echo "make docs         the documentation as a site in site/, with search; a broken link is an error"

setup: $(READY)
$(READY): pyproject.toml uv.lock scripts/setup
	@scripts/setup
	@touch $@

engine:
	@scripts/engine up

engine-stop:
	@scripts/engine down

# The pinned base is the registry's: where none answers, the one that was made here instead is pinned.
quickstart: $(READY) engine
	@eval "$$(scripts/engine env)"; scripts/base-image; \
	 made=$$(docker image ls --quiet --filter label=builder.base=debian-packages debian:bookworm-slim); \
	 $(BUILDER) build recipes/qwen3-0.6b-cpu.yaml $${made:+--update base}
	@echo
	@$(BUILDER) list
	@printf '\nTry next:\n'
	@printf '  %-41s  %s\n' '$(BUILDER) show cpu' 'what is in the image' \
	  '$(BUILDER) build qwen3-0.6b-cpu' 'nothing changed: nothing is built' \
	  '$(BUILDER) rollback qwen3-0.6b-cpu' 'after a second build: to the first'

test: $(READY) check
	@scripts/test

test-slow: $(READY)
	@scripts/test -m "long and not full"

test-full: $(READY) check
	@BUILDER_KILLS=200 scripts/test -m ""

FAST := -q -m "not engine and not image and not slow and not long and not full" --numprocesses=auto --maxprocesses=4
test-fast: $(READY)
	@.venv/bin/pytest $(FAST)

# The tools of the tests are their newest versions: only what the program imports has a lowest one.
LOWEST := .builder/lowest
test-lowest: $(READY)
	@export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-https://pypi.org/simple}}" VIRTUAL_ENV=$(LOWEST); \
	 .venv/bin/uv venv --quiet --clear --seed --python .venv/bin/python $(LOWEST); \
	 .venv/bin/uv pip compile --quiet --no-header --no-annotate --resolution lowest-direct \
	   --output-file $(LOWEST)/requirements.txt pyproject.toml; \
	 .venv/bin/uv pip install --quiet --requirement $(LOWEST)/requirements.txt --group dev; \
	 .venv/bin/uv pip install --quiet --no-deps --editable .
	@$(LOWEST)/bin/pytest $(FAST)

test-fuzz: $(READY)
	@BUILDER_FUZZ=10000 .venv/bin/pytest -q --durations=0 -m "" tests/fuzz

# Fast tests come first, in the time that they take; what they leave is for slow ones and those on an engine.
test-mutants: $(READY) engine
	@rm -rf .builder/mutation
	@.venv/bin/python -m tests.mutation measure fast
	@.venv/bin/python -m tests.mutation run fast
	@eval "$$(scripts/engine env)"; \
	 .venv/bin/python -m tests.mutation measure rest; \
	 .venv/bin/python -m tests.mutation run rest
	@.venv/bin/python -m tests.mutation show

test-gpu: $(READY)
	@.venv/bin/python -m tests.gpu $(if $(IMAGE),--image $(IMAGE)) $(if $(PYTHON),--python $(PYTHON)) $(if $(PARTS),--parts '$(PARTS)') \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RESUME),--resume)

coverage: $(READY)
	@rm -f .coverage .coverage.*
	@scripts/test --coverage -m "not full"
	@.venv/bin/coverage combine --quiet
	@.venv/bin/coverage report --skip-covered --sort=miss

# What git has and is there: builds leave files in a clone, too.
SOURCES := comm -23 <(git ls-files -- . ':!builds' | sort) <(git ls-files --deleted | sort)

check: $(READY)
	@.venv/bin/ruff check --quiet $$($(SOURCES) | grep '\.py$$')
	@.venv/bin/ruff format --check --quiet $$($(SOURCES) | grep '\.py$$')
	@.venv/bin/mypy --no-error-summary
	@said=$$(.venv/bin/lint-imports --no-logo) || { echo "$$said"; exit 1; }
	@.venv/bin/vulture
	@.venv/bin/codespell $$($(SOURCES))
	@.venv/bin/yamllint --strict $$($(SOURCES) | grep -E '\.(yaml|yml|yamllint)$$')
	@.venv/bin/shellcheck --external-sources $$($(SOURCES) | grep -v '\.md$$' | xargs grep -lE '^#!.*(bash|sh)$$')

format: $(READY)
	@.venv/bin/ruff check --quiet --fix
	@.venv/bin/ruff format --quiet

bench: $(READY) engine
	@eval "$$(scripts/engine env)"; scripts/base-image
	@.venv/bin/python -m benchmarks --write

reference: $(READY)
	@.venv/bin/python -m docs.reference.generate

# The generator of the site is a group of its own, which nothing else needs.
docs: $(READY)
	@.venv/bin/uv export --quiet --frozen --only-group docs --no-header --output-file .builder/docs.txt
	@export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-https://pypi.org/simple}}"; \
	 .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes -r .builder/docs.txt
	@.venv/bin/python -m docs.site .builder/pages
	@.venv/bin/zensical build --strict --clean
	@echo 'site/index.html; search needs a server: python3 -m http.server --directory site'

wheel: $(READY)
	@.venv/bin/uv build --quiet --out-dir dist
	@ls dist/*.whl

clean:
	rm -rf .venv .builder/work .builder/logs .builder/pages .cache .mypy_cache .ruff_cache .pytest_cache site

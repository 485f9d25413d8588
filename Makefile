# make quickstart   set everything up and build the first image
# make test         the checks and the tests, on a real engine
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help quickstart test test-slow test-full test-fast test-lowest test-fuzz test-mutants test-gpu coverage check check-types check-others format setup engine engine-stop bench reference docs wheel clean

# Python stores compiled files even if the environment forbids it, because the tests import them in many processes.
export PYTHONDONTWRITEBYTECODE :=

READY := .venv/.ready
BUILDER := .venv/bin/builder

help:
	@sed -n 's/^# make /make /p' Makefile
	@echo "make setup        .venv with the program, from uv.lock: .venv/bin/builder"
	@echo "make test-fast    the tests without an engine, in half a minute; tests of changed files come first"
	@echo "make test-slow    the long tests: more images with a real vLLM, planted faults, several machines"
	@echo "make test-full    all tests, also kills at every place, arm64, the CUDA wheels (40 GB of disk)"
	@echo "make test-lowest  the tests of test-fast with the lowest versions that pyproject.toml allows"
	@echo "make test-fuzz    10,000 damaged files of each format"
	@echo "make test-mutants check that tests notice small changes of numbers, lock, plan, rollback and prune: hours"
	@echo "make coverage     all tests, and the lines and branches that they reach"
	@echo "make test-gpu     the shipped mods on this machine's GPU, up to 50 minutes: IMAGE=NAME:N, or PYTHON=PATH with a vLLM"
	@echo "make check        linters, types and the import rules"
	@echo "make engine       start a private Docker engine if no engine answers (root)"
	@echo "make engine-stop  stop the private engine"
	@echo "make wheel        the wheel in dist/, which works without a clone"
	@echo "make bench        measure everything in about an hour, and write docs/benchmarks.md (root)"
	@echo "make reference    write docs/reference and the schema of images.lock"
	@echo "make docs         the documentation as a site in site/, with search; broken links are errors"

setup: $(READY)
$(READY): pyproject.toml uv.lock scripts/setup
	@scripts/setup
	@touch $@

engine:
	@scripts/engine up

engine-stop:
	@scripts/engine down

# If no registry answers, `quickstart` makes the base image, and pins it instead of the registry's image.
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

test: $(READY)
	@scripts/test --check

test-slow: $(READY)
	@scripts/test -m "long and not full"

test-full: $(READY)
	@BUILDER_KILLS=200 scripts/test --check -m ""

FAST := -q -m "not engine and not image and not slow and not long and not full" --numprocesses=auto --maxprocesses=4
test-fast: $(READY)
	@.venv/bin/pytest $(FAST)

# Only the program's imports have lowest versions. The tests' tools are the newest.
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

# The fast tests come first. The slow tests and those with an engine try the mutants that the fast tests do not kill.
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

# The existing files of git. Builds also leave files in a clone.
SOURCES := comm -23 <(git ls-files -- . ':!builds' | sort) <(git ls-files --deleted | sort)

# mypy takes as long as all other checks together, on one processor.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync check-types check-others

check-types:
	@.venv/bin/mypy --no-error-summary

check-others:
	@.venv/bin/ruff check --quiet $$($(SOURCES) | grep '\.py$$')
	@.venv/bin/ruff format --check --quiet $$($(SOURCES) | grep '\.py$$')
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

# Only this target requires the group `docs`, with the generator of the site.
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

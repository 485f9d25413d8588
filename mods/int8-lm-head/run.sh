#!/usr/bin/env bash
# Puts the package that hook.patch imports beside vLLM's own layers. vLLM is found, not imported.
set -euo pipefail

vllm=$(python3 -c 'import importlib.util; print(importlib.util.find_spec("vllm").submodule_search_locations[0])')
install -D -m 0644 -t "$vllm/model_executor/layers/int8_lm_head" int8_lm_head/*.py

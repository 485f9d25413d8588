#!/usr/bin/env bash
# Puts the chat template where `vllm serve --chat-template qwen3.5-enhanced.jinja` looks for it.
set -euo pipefail

: "${WORKSPACE_DIR:?is not set: it names the folder that vllm serve starts in}"
install -m 0644 -T qwen3.5-enhanced.jinja "$WORKSPACE_DIR/qwen3.5-enhanced.jinja"

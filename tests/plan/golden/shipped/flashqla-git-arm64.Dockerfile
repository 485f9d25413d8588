# The user's local wheels, if any, replace this empty stage.
FROM scratch AS find-links

# The image of the definition that this one builds on. The bake file names it.
FROM dflash AS base

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-flashqla-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# the kernels and what they need
. /run/builder/step.sh
begin_step
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export UV_LINK_MODE=copy UV_HTTP_TIMEOUT=120
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; fi
if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX="$PIP_EXTRA_INDEX_URL"; fi
cd /run/builder/python
PIP_NO_CACHE_DIR=1 python3 -m pip install --quiet --root-user-action=ignore --no-deps --require-hashes -r uv.txt
install_locked() {
    uv pip install --system --no-deps --require-hashes --compile-bytecode "$@"
}
install_locked -r packages.txt
end_step
EOF

ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=build-metadata.yaml,target=/run/builder/build-metadata.yaml <<'EOF'
# build-metadata.yaml
. /run/builder/step.sh
begin_step
mkdir -p /workspace/vllm
install -m 0644 /run/builder/build-metadata.yaml /workspace/build-metadata.yaml
end_step
EOF
WORKDIR /workspace/vllm


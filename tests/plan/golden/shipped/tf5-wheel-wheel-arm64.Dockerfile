# The user's local wheels, if any, replace this empty stage.
FROM scratch AS find-links

# The same base builds and runs: kernels that are compiled when vLLM starts require nvcc and the headers.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS toolchain

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/apt.sh,target=/run/builder/apt.sh \
    --mount=type=cache,id=apt-tf5-wheel-arm64,target=/run/builder/apt,sharing=locked \
    --mount=type=secret,id=distribution-packages <<'EOF'
# the distribution's packages
. /run/builder/step.sh
. /run/builder/apt.sh
begin_step
install_distribution_packages \
    ca-certificates \
    curl \
    earlyoom \
    ffmpeg \
    g++ \
    gcc \
    git \
    ibverbs-providers \
    iproute2 \
    libc6-dev \
    libibverbs1 \
    libnuma1 \
    librdmacm1 \
    make \
    patch \
    python3 \
    python3-dev \
    python3-pip \
    wget
end_step
EOF

# System-wide, as mods expect; this deliberately overrides PEP 668.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1

RUN <<'EOF'
# the Python version
set -eu
want=3.12
have=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$have" != "$want" ]; then
    echo "The base image has Python $have, and the packages are locked for $want: set python.version in image.yaml." >&2
    exit 1
fi
EOF

FROM toolchain AS base

# For kernels that are compiled when vLLM starts: Triton's own ptxas is older than the base image's.
ENV TORCH_CUDA_ARCH_LIST=12.1a FLASHINFER_CUDA_ARCH_LIST=12.1a \
    TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas TRITON_PTXAS_BLACKWELL_PATH=/usr/local/cuda/bin/ptxas

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-tf5-wheel-arm64,target=/root/.cache/uv \
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
install_locked -r packages.txt
end_step
EOF

ARG MAX_JOBS TILELANG_AUTO_TUNING_MAX_CPU_COUNT TORCHINDUCTOR_COMPILE_THREADS
ENV MAX_JOBS="${MAX_JOBS:-4}" TILELANG_AUTO_TUNING_MAX_CPU_COUNT="${TILELANG_AUTO_TUNING_MAX_CPU_COUNT:-4}" \
    TORCHINDUCTOR_COMPILE_THREADS="${TORCHINDUCTOR_COMPILE_THREADS:-4}"

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


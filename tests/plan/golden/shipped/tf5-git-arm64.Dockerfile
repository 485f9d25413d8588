# The user's local wheels, if any, replace this empty stage.
FROM scratch AS find-links

# The source trees at the pinned commits replace these empty stages.
FROM scratch AS flashinfer-source
FROM scratch AS vllm-source

# The same base builds and runs: kernels that are compiled when vLLM starts require nvcc and the headers.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS toolchain

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/apt.sh,target=/run/builder/apt.sh \
    --mount=type=cache,id=apt-tf5-arm64,target=/run/builder/apt,sharing=locked \
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

FROM toolchain AS build

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/apt.sh,target=/run/builder/apt.sh \
    --mount=type=cache,id=apt-tf5-arm64,target=/run/builder/apt,sharing=locked \
    --mount=type=secret,id=distribution-packages <<'EOF'
# the compiler cache, and what Rust needs
. /run/builder/step.sh
. /run/builder/apt.sh
begin_step
install_distribution_packages \
    ccache \
    libprotobuf-dev \
    perl \
    pkg-config \
    protobuf-compiler \
    xz-utils
end_step
EOF

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-tf5-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# the Python packages for building
. /run/builder/step.sh
begin_step
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export UV_LINK_MODE=copy UV_HTTP_TIMEOUT=120 UV_LOCK_TIMEOUT=36000
if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; fi
if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX="$PIP_EXTRA_INDEX_URL"; fi
cd /run/builder/python
PIP_NO_CACHE_DIR=1 python3 -m pip install --quiet --root-user-action=ignore --no-deps --require-hashes -r uv.txt
install_locked() {
    uv pip install --system --no-deps --require-hashes "$@"
}
install_locked -r build.txt
end_step
EOF

FROM build AS flashinfer-wheel
RUN --mount=type=bind,from=flashinfer-source,target=/src/flashinfer,rw \
    --mount=type=cache,id=compiling,target=/run/builder/compiling,sharing=locked \
    --mount=type=secret,id=BUILD_JOBS \
    --mount=type=cache,id=ccache-tf5-arm64,target=/root/.cache/ccache \
    --mount=type=cache,id=uv-tf5-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt <<'EOF'
# the flashinfer wheel
set -eu
cd /src/flashinfer
if [ ! -f pyproject.toml ]; then
    echo "The build context "flashinfer-source" holds no source tree: build with the bake file of this directory." >&2
    exit 1
fi
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt GIT_SSL_CAINFO=/etc/ssl/certs/ca-certificates.crt
export REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
export SOURCE_DATE_EPOCH=1795082400
export CCACHE_DIR=/root/.cache/ccache CCACHE_MAXSIZE=50G CCACHE_NOHASHDIR=1
# nvcc writes its process id into the symbol table (the FILE symbol tmpxft_…). Without that table, the same source gives the
# same library.
export LDFLAGS="${LDFLAGS:+$LDFLAGS }-Wl,-s" FLASHINFER_EXTRA_LDFLAGS=-Wl,-s
# The number of jobs: as configured, or one per processor, as far as they fit into the free memory.
cgroup() { cat "/sys/fs/cgroup/$1" "/sys/fs/cgroup/memory/$2" 2> /dev/null || true; }
memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
limit=$(cgroup memory.max memory.limit_in_bytes)
if [ "${limit:-max}" != max ] && [ $((limit / 1024)) -lt "$memory" ]; then memory=$((limit / 1024)); fi
memory=$((memory / 1048576))
MAX_JOBS=$(nproc)
if [ "$MAX_JOBS" -gt 16 ]; then MAX_JOBS=16; fi
if [ "$MAX_JOBS" -gt $((memory / 8)) ]; then MAX_JOBS=$((memory / 8)); fi
if [ "$MAX_JOBS" -lt 1 ]; then MAX_JOBS=1; fi
if [ -s /run/secrets/BUILD_JOBS ]; then BUILD_JOBS=$(cat /run/secrets/BUILD_JOBS); fi
MAX_JOBS=${BUILD_JOBS:-$MAX_JOBS}
echo "compiling flashinfer with MAX_JOBS=$MAX_JOBS: $memory GiB at 8 GiB a job"
export MAX_JOBS CMAKE_BUILD_PARALLEL_LEVEL="$MAX_JOBS" CARGO_BUILD_JOBS="$MAX_JOBS"
# The peak memory of the processes, without the page cache; and whether the kernel killed one because memory ran out.
kills() { cgroup memory.events memory.oom_control | sed -n 's/^oom_kill \([0-9]*\)$/\1/p'; }
watch_memory() {
    most=0
    while sleep 1; do
        now=$(cgroup memory.stat memory.stat | sed -n -e 's/^anon \([0-9]*\)$/\1/p' -e 's/^total_rss \([0-9]*\)$/\1/p')
        if [ "${now:-0}" -gt "$most" ]; then most=$now; echo "$most" > /tmp/memory; fi
    done
}
report_memory() {
    code=$?
    trap - EXIT
    kill "$watcher" 2> /dev/null || true
    if [ -s /tmp/memory ]; then
        echo "compiling flashinfer with MAX_JOBS=$MAX_JOBS took $(($(cat /tmp/memory) / 1048576)) MiB of memory"
    fi
    if [ "$(kills)" != "$killed" ]; then
        echo "compiling flashinfer with MAX_JOBS=$MAX_JOBS ran out of memory: the kernel killed a process"
    fi
    rm -f /tmp/memory
    exit "$code"
}
killed=$(kills)
watch_memory &
watcher=$!
trap report_memory EXIT
build() {
    uv build --no-config --offline --wheel --no-build-isolation --python "$(command -v python3)" --out-dir /wheels "$1"
}
# Without these settings, the build would install packages of its own choice, and try to build NIXL.
export FLASHINFER_BUILD_NO_PIP=1 BUILD_NVEP=0
export FLASHINFER_CUDA_ARCH_LIST=12.1a TORCH_CUDA_ARCH_LIST=12.1a
export FLASHINFER_CXX_LAUNCHER=ccache FLASHINFER_NVCC_LAUNCHER=ccache
build .
# Since 0.7, each architecture has its own wheel of kernels, and jit-cache only requires those wheels.
if [ -d flashinfer-jit-cache-provider ]; then
    for architecture in $(printf %s "$FLASHINFER_CUDA_ARCH_LIST" | tr ';' ' '); do
        rm -rf flashinfer-jit-cache-provider/build flashinfer-jit-cache-provider/flashinfer_jit_cache_provider/jit_cache
        FLASHINFER_JIT_CACHE_PROVIDER_ARCH="$architecture" build flashinfer-jit-cache-provider
    done
    export FLASHINFER_JIT_CACHE_WHEEL_KIND=shim
    FLASHINFER_JIT_CACHE_PROVIDER_ARCHS=$(printf %s "$FLASHINFER_CUDA_ARCH_LIST" | tr ';' ' ')
    export FLASHINFER_JIT_CACHE_PROVIDER_ARCHS
fi
build flashinfer-jit-cache
# Later steps wait for this stage, but use nothing from it.
mkdir /built
EOF

FROM build AS vllm-wheel
RUN --mount=type=bind,from=vllm-source,target=/src/vllm,rw \
    --mount=type=bind,from=flashinfer-wheel,source=/built,target=/run/builder/after \
    --mount=type=cache,id=compiling,target=/run/builder/compiling,sharing=locked \
    --mount=type=secret,id=BUILD_JOBS \
    --mount=type=cache,id=cargo-tf5-arm64,target=/root/.cache/cargo \
    --mount=type=cache,id=ccache-tf5-arm64,target=/root/.cache/ccache \
    --mount=type=cache,id=uv-tf5-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt <<'EOF'
# the vllm wheel
set -eu
cd /src/vllm
if [ ! -f pyproject.toml ]; then
    echo "The build context "vllm-source" holds no source tree: build with the bake file of this directory." >&2
    exit 1
fi
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt GIT_SSL_CAINFO=/etc/ssl/certs/ca-certificates.crt
export REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
export SOURCE_DATE_EPOCH=1795082400
export CCACHE_DIR=/root/.cache/ccache CCACHE_MAXSIZE=50G CCACHE_NOHASHDIR=1
# nvcc writes its process id into the symbol table (the FILE symbol tmpxft_…). Without that table, the same source gives the
# same library.
export LDFLAGS="${LDFLAGS:+$LDFLAGS }-Wl,-s" FLASHINFER_EXTRA_LDFLAGS=-Wl,-s
# The number of jobs: as configured, or one per processor, as far as they fit into the free memory.
cgroup() { cat "/sys/fs/cgroup/$1" "/sys/fs/cgroup/memory/$2" 2> /dev/null || true; }
memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
limit=$(cgroup memory.max memory.limit_in_bytes)
if [ "${limit:-max}" != max ] && [ $((limit / 1024)) -lt "$memory" ]; then memory=$((limit / 1024)); fi
memory=$((memory / 1048576))
MAX_JOBS=$(nproc)
if [ "$MAX_JOBS" -gt 16 ]; then MAX_JOBS=16; fi
if [ "$MAX_JOBS" -gt $((memory / 8)) ]; then MAX_JOBS=$((memory / 8)); fi
if [ "$MAX_JOBS" -lt 1 ]; then MAX_JOBS=1; fi
if [ -s /run/secrets/BUILD_JOBS ]; then BUILD_JOBS=$(cat /run/secrets/BUILD_JOBS); fi
MAX_JOBS=${BUILD_JOBS:-$MAX_JOBS}
echo "compiling vllm with MAX_JOBS=$MAX_JOBS: $memory GiB at 8 GiB a job"
export MAX_JOBS CMAKE_BUILD_PARALLEL_LEVEL="$MAX_JOBS" CARGO_BUILD_JOBS="$MAX_JOBS"
# The peak memory of the processes, without the page cache; and whether the kernel killed one because memory ran out.
kills() { cgroup memory.events memory.oom_control | sed -n 's/^oom_kill \([0-9]*\)$/\1/p'; }
watch_memory() {
    most=0
    while sleep 1; do
        now=$(cgroup memory.stat memory.stat | sed -n -e 's/^anon \([0-9]*\)$/\1/p' -e 's/^total_rss \([0-9]*\)$/\1/p')
        if [ "${now:-0}" -gt "$most" ]; then most=$now; echo "$most" > /tmp/memory; fi
    done
}
report_memory() {
    code=$?
    trap - EXIT
    kill "$watcher" 2> /dev/null || true
    if [ -s /tmp/memory ]; then
        echo "compiling vllm with MAX_JOBS=$MAX_JOBS took $(($(cat /tmp/memory) / 1048576)) MiB of memory"
    fi
    if [ "$(kills)" != "$killed" ]; then
        echo "compiling vllm with MAX_JOBS=$MAX_JOBS ran out of memory: the kernel killed a process"
    fi
    rm -f /tmp/memory
    exit "$code"
}
killed=$(kills)
watch_memory &
watcher=$!
trap report_memory EXIT
build() {
    uv build --no-config --offline --wheel --no-build-isolation --python "$(command -v python3)" --out-dir /wheels "$1"
}
# The lock decides these versions, so the wheel must not require others. (Else `pip install` in a mod would replace them.)
find requirements \( -name '*.txt' -o -name '*.in' \) -exec sed -i -E \
    '/^(torch|torchaudio|torchcodec|torchvision|triton|flashinfer(-python|-cubin|-jit-cache)?)([^A-Za-z0-9_-]|$)/Id' {} +
# The tree has no .git folder, so setuptools-scm gets the version from a variable.
export VLLM_VERSION_OVERRIDE=0.19.2.dev31+gaaaaaaa SETUPTOOLS_SCM_PRETEND_VERSION=0.19.2.dev31+gaaaaaaa
export SETUPTOOLS_SCM_PRETEND_METADATA='{node = "gaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", dirty = false}'
export VLLM_TARGET_DEVICE=cuda CMAKE_BUILD_TYPE=Release
export TORCH_CUDA_ARCH_LIST=12.1a
if [ -f rust-toolchain.toml ]; then
    rust=1.95.0
    rust_wanted=$(sed -n 's/^ *channel *= *"\([^"]*\)".*/\1/p' rust-toolchain.toml)
    rust_archive="rust-$rust-$(uname -m)-unknown-linux-gnu.tar.xz"
    rust_url="https://static.rust-lang.org/dist/$rust_archive"
    case "$rust_wanted:$rust." in
        stable:* | "$rust_wanted:$rust_wanted."*) ;;
        *)
            echo "vLLM's front end is written for Rust $rust_wanted, and image.yaml has Rust $rust: set \`rust\` and" >&2
            echo "\`rust_sha256\` under \`args:\` (the sum is at $rust_url.sha256, for the version of your choice)." >&2
            exit 1
            ;;
    esac
    rust_file="/root/.cache/cargo/$rust_archive"
    rust_verified() {
        printf '%s  %s\n' 094c9c36531911c5cc7dd6ab2d3069ab8dcd744d6239b0bda1387b243dfc391e "$rust_file" | sha256sum --check --status 2> /dev/null
    }
    if ! rust_verified; then
        echo "fetching $rust_url"
        rust_part=$(mktemp "$rust_file.XXXXXX")
        curl --proto '=https' --retry 3 -fsSL -o "$rust_part" "$rust_url"
        mv "$rust_part" "$rust_file"
        if ! rust_verified; then
            echo "$rust_url has the SHA-256 $(sha256sum "$rust_file" | cut -d ' ' -f 1), not "094c9c36531911c5cc7dd6ab2d3069ab8dcd744d6239b0bda1387b243dfc391e": nothing" >&2
            echo "of it is run. \`rust_sha256\` under \`args:\` in image.yaml is the sum of another version's archive." >&2
            rm "$rust_file"
            exit 1
        fi
    fi
    mkdir -p /opt/rust/archive
    tar -xJf "$rust_file" -C /opt/rust/archive --strip-components=1
    /opt/rust/archive/install.sh --prefix=/opt/rust --disable-ldconfig \
        --components="rustc,cargo,rust-std-$(uname -m)-unknown-linux-gnu" > /dev/null
    rm -rf /opt/rust/archive
    # Cargo.lock has the checksum of every crate. git fetches the crates from git, because git uses the CA file.
    export PATH="/opt/rust/bin:$PATH" CARGO_HOME=/root/.cache/cargo CARGO_BUILD_JOBS="$MAX_JOBS"
    export CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt CARGO_NET_GIT_FETCH_WITH_CLI=true
    export VLLM_REQUIRE_RUST_FRONTEND=1
    rustc --version
fi

build .
ccache --show-stats
EOF

FROM toolchain AS base

# For kernels that are compiled when vLLM starts: Triton's own ptxas is older than the base image's.
ENV TORCH_CUDA_ARCH_LIST=12.1a FLASHINFER_CUDA_ARCH_LIST=12.1a \
    TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas TRITON_PTXAS_BLACKWELL_PATH=/usr/local/cuda/bin/ptxas

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=python,target=/run/builder/python \
    --mount=type=bind,from=find-links,target=/run/builder/find-links \
    --mount=type=cache,id=uv-tf5-arm64,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# the Python packages
. /run/builder/step.sh
begin_step
export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export UV_LINK_MODE=copy UV_HTTP_TIMEOUT=120 UV_LOCK_TIMEOUT=36000
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

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,from=flashinfer-wheel,source=/wheels,target=/run/builder/wheels/flashinfer \
    --mount=type=bind,from=vllm-wheel,source=/wheels,target=/run/builder/wheels/vllm \
    --mount=type=cache,id=uv-tf5-arm64,target=/root/.cache/uv <<'EOF'
# the built wheels
. /run/builder/step.sh
begin_step
UV_LINK_MODE=copy uv pip install --system --no-deps --offline --compile-bytecode /run/builder/wheels/*/*.whl
have=$(python3 -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' vllm)
if [ "$have" != 0.19.2.dev31+gaaaaaaa ]; then
    echo "The wheel of "vllm" says version $have, and "0.19.2.dev31+gaaaaaaa" is pinned." >&2
    exit 1
fi
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


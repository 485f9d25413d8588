# The pinned base image.
FROM eugr/spark-vllm:latest@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS base

# Mods change installed files, and a server finds the host's models and caches below /root.
USER root

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/apt.sh,target=/run/builder/apt.sh \
    --mount=type=cache,id=apt-node-arm64,target=/run/builder/apt,sharing=locked \
    --mount=type=secret,id=distribution-packages \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt <<'EOF'
# the tools that mods rely on
. /run/builder/step.sh
. /run/builder/apt.sh
missing=''
for command in bash cmp curl find git patch wget; do
    command -v "$command" > /dev/null || missing="$missing $command"
done
if [ -z "$missing" ] && { command -v earlyoom || ! command -v apt-get; } > /dev/null; then
    exit 0
fi
begin_step
packages=$(printf '%s' "$missing" | sed -e 's/cmp/diffutils/' -e 's/find/findutils/')
if command -v apt-get > /dev/null; then
    if [ -n "$missing" ]; then
        # shellcheck disable=SC2086  # one word per package
        install_distribution_packages $packages
    fi
    if ! command -v earlyoom > /dev/null; then
        install_distribution_packages earlyoom \
            || echo "earlyoom cannot be installed, so \`run --earlyoom\` will not work with this image." >&2
    fi
elif command -v microdnf > /dev/null || command -v dnf > /dev/null; then
    # shellcheck disable=SC2046,SC2086
    $(command -v dnf || command -v microdnf) install -y --setopt=install_weak_deps=0 $packages
    $(command -v dnf || command -v microdnf) clean all
else
    echo "The base image lacks$missing, and has no known package manager: mods that require one of these will fail." >&2
fi
if command -v find > /dev/null; then end_step; fi
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
file=/workspace/build-metadata.yaml
merged=$file.merged
if [ -s "$file" ] && command -v awk > /dev/null; then
    awk -F: '
        NR == FNR { if (/^[A-Za-z_]+: *[^ ]/) { names[++count] = $1; lines[$1] = $0 }; next }
        { ours[$1] = 1; print (/: null$/ && ($1 in lines) ? lines[$1] : $0) }
        END { for (place = 1; place <= count; place++) if (!(names[place] in ours)) print lines[names[place]] }
    ' "$file" /run/builder/build-metadata.yaml > "$merged"
else
    cp /run/builder/build-metadata.yaml "$merged"
fi
install -m 0644 "$merged" "$file"
rm "$merged"
end_step
EOF
WORKDIR /workspace/vllm

# The base's own entrypoint and command go: a container gets its command when it starts.
ENTRYPOINT []
CMD ["/bin/bash"]


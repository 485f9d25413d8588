FROM debian:bookworm-slim@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb AS base
RUN echo hello > /greeting
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

ARG SOURCE_DATE_EPOCH

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=bind,source=mods/dropped,target=/run/builder/mod \
    --network=none <<'EOF'
# mod dropped
. /run/builder/bake-mod.sh
begin dropped /workspace/vllm
drop x .
drop 'it'"'"'s' '/opt/$x/'
finish
EOF

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=bind,source=mods/patched,target=/run/builder/mod \
    --network=none <<'EOF'
# mod patched
. /run/builder/bake-mod.sh
begin patched /workspace/vllm
apply_patch x vllm 1 'pinned: 0.23.0.dev1+gaaaaaaa, commit aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'
apply_patch 'it'"'"'s' six 0 ''
finish
EOF

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=cache,id=uv-mods,target=/root/.cache/uv \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# mod installed
. /run/builder/bake-mod.sh
begin installed /workspace/vllm
install_packages six==1.17.0 'a[b]==1!2+c'
finish
EOF

FROM base AS mod-4
ARG SOURCE_DATE_EPOCH

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=bind,source=mods/described,target=/run/builder/mod \
    --mount=type=bind,from=base,target=/run/builder/below,rw \
    --network=none <<'EOF'
# mod described
. /run/builder/bake-mod.sh
begin described /workspace/vllm
run_script x 60 no-network
finish may-be-empty /root/.cache/huggingface /root/.cache/vllm /root/.cache/b12x /root/.cache/flashinfer /root/.tilelang /root/.triton
EOF

# mod described
ENV AFTER="1"

FROM mod-4 AS mod-5
ARG SOURCE_DATE_EPOCH

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=bind,source=mods/online,target=/run/builder/mod \
    --mount=type=bind,from=mod-4,target=/run/builder/below,rw \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# mod online
. /run/builder/bake-mod.sh
begin online /workspace/vllm
run_script x 3600 network
finish must-change /root/.cache/huggingface /root/.cache/vllm /root/.cache/b12x /root/.cache/flashinfer /root/.tilelang /root/.triton
EOF

# mod set
ENV A="'\\ \$x \" `y` #" B=""

FROM mod-5 AS mod-7
ARG SOURCE_DATE_EPOCH

RUN --mount=type=bind,source=parts/step.sh,target=/run/builder/step.sh --mount=type=tmpfs,target=/run/builder/work \
    --mount=type=bind,source=parts/bake-mod.sh,target=/run/builder/bake-mod.sh \
    --mount=type=bind,source=mods/template,target=/run/builder/mod \
    --mount=type=bind,from=mod-5,target=/run/builder/below,rw \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=PIP_INDEX_URL \
    --mount=type=secret,id=PIP_EXTRA_INDEX_URL <<'EOF'
# mod template
. /run/builder/bake-mod.sh
begin template /workspace/vllm
run_script run.sh 3600 network
finish must-change /root/.cache/huggingface /root/.cache/vllm /root/.cache/b12x /root/.cache/flashinfer /root/.tilelang /root/.triton
EOF


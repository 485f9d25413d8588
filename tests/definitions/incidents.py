"""Incidents that owners told of in threads, each with all that their machine, image and command had, as far as the
thread tells; where it does not, with what others had at that time. `NEAR` of each is what did not fail."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.base.machine_record import Machine
from builder.serving import advice

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.serving.advice import NewFacts

GB10 = "NVIDIA GB10"
PRO_6000 = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
# A Spark of summer 2026, and what an image of that time has.
MACHINE = {"chip": GB10, "kernel": "6.17.0-1029-nvidia", "driver": "580.173.02", "driver.modules": "open"}
PARAMETERS = "BOOT_IMAGE=/boot/vmlinuz root=UUID=0 ro console=tty0 quiet splash"
PACKAGES = {
    "fastapi": "0.136.1",
    "fastsafetensors": "0.3.3",
    "flashinfer-jit-cache": "0.6.16",
    "flashinfer-python": "0.6.16",
    "instanttensor": "0.2.2",
    "nvidia-cutlass-dsl": "4.5.2",
    "nvidia-nccl-cu13": "2.29.7",
    "ray": "2.53.0",
    "torch": "2.13.0",
    "transformers": "5.14.1",
    "triton": "3.6.0",
    "vllm": "0.28.0",
}
QWEN_TOOLS = "--enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser qwen3"


def drafting(method: str, tokens: int = 3, **more: str) -> str:
    inner = "".join(f', "{key}": "{value}"' for key, value in more.items())
    return f"""--speculative-config '{{"method": "{method}", "num_speculative_tokens": {tokens}{inner}}}'"""


@dataclass(frozen=True)
class Incident:
    """An incident: the advisory that should tell of it, and what there was. ``near`` is what differs where it did not
    happen; ``base`` and ``definition`` are those of an image that is composed, None for one of others."""

    advisory: str
    command: str
    near: dict[str, Any]
    nodes: int = 1
    vllm: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    container: str = "vllm-node"
    env: dict[str, str] = field(default_factory=dict)
    chip: str = GB10
    kernel: str = MACHINE["kernel"]
    driver: str = MACHINE["driver"]
    modules: str = "open"
    parameters: str = PARAMETERS
    base: str = ""
    mods: tuple[str, ...] = ()

    def facts(self, recipe: Recipe) -> NewFacts:
        packages = {**PACKAGES, **self.packages, **({"vllm": self.vllm} if self.vllm else {})}
        packages = {name: version for name, version in packages.items() if version}
        words = shlex.split(self.command)
        own = replace(
            recipe, model=words[2], container=self.container, env=dict(self.env), mods=self.mods, command=self.command
        )
        facts = advice.of_recipe(own, words, self.nodes)
        facts["env"] = dict(self.env)
        facts |= advice.of_packages(packages, {})
        facts |= {"mod": self.mods or None, "definition": ("own",) if self.base else None}
        if self.base:
            facts |= {"base": self.base, "entrypoint": None}
        facts |= advice.machine_facts(Machine(kernel=self.kernel, driver=self.driver, gpu=self.chip))
        return {**facts, "driver.modules": self.modules, "kernel.parameters": self.parameters}


_V4 = (
    "vllm serve deepseek-ai/DeepSeek-V4-Flash-0731 --tensor-parallel-size 2 --kv-cache-dtype fp8 "
    "--gpu-memory-utilization 0.80 --max-num-seqs 2 --enable-prefix-caching --tool-call-parser deepseek_v4"
)
_NEMOTRON = (
    "vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 --quantization fp4 --moe-backend marlin "
    "--kv-cache-dtype fp8 --max-num-seqs 4 --max-model-len 1000000 " + drafting("mtp", moe_backend="triton")
)
_GEMMA = "vllm serve google/gemma-4-26B-A4B-it --max-model-len 131072 --gpu-memory-utilization 0.70"
_QWEN36 = f"vllm serve Qwen/Qwen3.6-35B-A3B-FP8 --enable-prefix-caching --max-model-len 262144 {QWEN_TOOLS}"
_GLM = "vllm serve zai-org/GLM-5.3-Flash --tensor-parallel-size 2 --kv-cache-dtype fp8 --max-num-seqs 4"
_GLM_NVFP4 = "vllm serve RadixArk/GLM-5.3-Flash-NVFP4 --tensor-parallel-size 2 --enforce-eager --max-model-len 65536"
_OLD_NCCL = {"nvidia-nccl-cu13": "2.28.9", "torch": "2.11.0"}

INCIDENTS = (
    # https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14
    Incident(
        "kernel-7-kexec-handover",
        _V4,
        {"kernel": "6.17.0-1032-nvidia"},
        nodes=3,
        kernel="7.0.0-1019-nvidia",
        packages={"nvidia-nccl-cu13": "2.30.7"},
        env={"NCCL_IB_MERGE_NICS": "1", "NCCL_IB_DISABLE": "0", "NCCL_CUMEM_ENABLE": "1"},
    ),
    # https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259
    Incident(
        "kernel-7-kexec-handover",
        _V4,
        {"parameters": f"{PARAMETERS} kho=off"},
        nodes=2,
        vllm="0.25.2.dev0+g752a3a504.d20260714",
        kernel="7.0.0-31-generic",
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/392
    Incident(
        "kernel-7-kexec-handover",
        _V4,
        {"nodes": 1},
        nodes=2,
        vllm="0.29.0",
        kernel="7.0.0-1019-nvidia",
        driver="580.173.02",
    ),
    # https://github.com/vllm-project/vllm/issues/56824
    Incident(
        "kernel-7-memory-at-start",
        "vllm serve RadixArk/Qwen3.8-Flash-Next-NVFP4 --tensor-parallel-size 1 --quantization modelopt "
        "--kv-cache-dtype fp8_e4m3 --gpu-memory-utilization 0.70 --no-enable-prefix-caching " + drafting("mtp"),
        {"kernel": "6.17.0-1032-nvidia"},
        vllm="0.29.0",
        kernel="7.0.0-1019-nvidia",
        env={"VLLM_USE_V2_MODEL_RUNNER": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    # README of https://github.com/eugr/spark-vllm-docker, March 2026
    Incident(
        "driver-590-cuda-graphs",
        "vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.7",
        {"chip": PRO_6000},
        vllm="0.17.1",
        driver="590.48.01",
        packages={"transformers": "4.57.6"},
    ),
    # https://github.com/Start9Labs/start-technologies/pull/3693
    Incident("driver-proprietary-modules", "vllm serve Qwen/Qwen3-8B", {"driver": "580.159.03"}, modules="proprietary"),
    # https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/pull/230
    Incident("page-size-64k-mmap", _GLM, {"kernel": "6.17.0-1032-nvidia"}, nodes=2, kernel="6.17.0-1032-nvidia-64k"),
    # https://github.com/vllm-project/vllm/issues/47397
    Incident(
        "ptx-newer-than-driver",
        "vllm serve Qwen/Qwen3-8B --dtype bfloat16",
        {"base": "nvidia/cuda:13.0.2-devel-ubuntu24.04"},
        vllm="0.23.0",
        driver="580.159.03",
        base="nvidia/cuda:13.3.0-devel-ubuntu24.04",
    ),
    # https://github.com/vllm-project/vllm/issues/52504
    Incident(
        "nccl-2.28.9-cuda-graphs",
        _V4,
        {"packages": {"nvidia-nccl-cu13": "2.30.4"}},
        nodes=2,
        vllm="0.26.0",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/42354
    Incident(
        "nccl-2.28.9-cuda-graphs",
        "vllm serve poolside/Laguna-S-2.1-NVFP4 -tp 2 --nnodes 2 --distributed-executor-backend mp "
        + drafting("dflash", 5, model="z-lab/Laguna-DFlash"),
        {"nodes": 1, "command": "vllm serve poolside/Laguna-S-2.1-NVFP4"},
        nodes=2,
        vllm="0.25.1",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/41725
    Incident(
        "nccl-2.28.9-cuda-graphs",
        "vllm serve lukealonso/MiniMax-M2.7-NVFP4 --tensor-parallel-size=2 --enable-expert-parallel",
        {"packages": {"nvidia-nccl-cu13": "2.29.7"}},
        nodes=2,
        vllm="0.20.1",
        packages=_OLD_NCCL,
    ),
    # https://github.com/NVIDIA/nccl/issues/2167
    Incident(
        "nccl-2.30.4-loading",
        "vllm serve XiaomiMiMo/MiMo-V2.5-Pro-NVFP4-MXFP8-attn --tensor-parallel-size 8 --moe-backend marlin",
        {"packages": {"nvidia-nccl-cu13": "2.29.7"}},
        nodes=8,
        vllm="0.1.dev1+g0891716c2.d20260509",
        packages={"nvidia-nccl-cu13": "2.30.4"},
    ),
    # Read in the libraries of 2.29.7 and 2.30.7
    Incident(
        "nccl-subnet-aware-routing",
        "vllm serve Intel/Qwen3.5-397B-A17B-int4-AutoRound --pipeline-parallel-size 3",
        {"packages": {"nvidia-nccl-cu13": "2.30.7"}},
        nodes=3,
        vllm="0.30.0",
        env={"NCCL_NET_PLUGIN": "none", "NCCL_IB_SUBNET_AWARE_ROUTING": "1", "NCCL_IB_MERGE_NICS": "0"},
    ),
    # https://github.com/MiaAI-Lab/GLM-5.3-Flash-NVFP4-Dual-DGX-Spark/pull/2
    Incident(
        "ray-memory-monitor",
        f"{_GLM_NVFP4} --distributed-executor-backend ray --gpu-memory-utilization 0.84 --moe-backend marlin",
        {"env": {"RAY_memory_monitor_refresh_ms": "0"}},
        nodes=2,
    ),
    # Read in the wheels; https://github.com/vllm-project/vllm/pull/43410
    Incident(
        "minimax-qk-norm-ipc",
        "vllm serve MiniMaxAI/MiniMax-M2.5 -tp 2",
        {"vllm": "0.24.0"},
        nodes=2,
        vllm="0.23.0",
    ),
    # https://github.com/vllm-project/vllm/issues/45800
    Incident(
        "minimax-m3-mnnvl-all-reduce",
        "vllm serve MiniMaxAI/MiniMax-M3-MXFP8 --tensor-parallel-size 8",
        {"nodes": 1},
        nodes=2,
        chip="NVIDIA H200",
        vllm="0.23.1rc1.dev41+g0123abc",
        packages=_OLD_NCCL,
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/321
    Incident(
        "sample-tokens-timeout-ray",
        "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 -tp 2 --distributed-executor-backend ray --kv-cache-dtype fp8 "
        "--attention-backend flashinfer --async-scheduling --enable-prefix-caching",
        {"vllm": "0.28.0"},
        nodes=2,
        vllm="0.23.1rc1.dev1053+gf2317c227.d20260712",
        driver="580.142",
        env={"RAY_memory_monitor_refresh_ms": "0"},
    ),
    # https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/204
    Incident(
        "instanttensor-kv-cache",
        f"{_GLM} --load-format instanttensor --max-model-len 850000 --gpu-memory-utilization 0.85",
        {"command": f"{_GLM} --load-format instanttensor --max-model-len 262144"},
        nodes=2,
    ),
    # https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/205
    Incident(
        "instanttensor-page-cache",
        f"{_GLM} --load-format=instanttensor --max-model-len 262144",
        {"packages": {"instanttensor": "0.2.1"}},
        nodes=2,
        packages={"instanttensor": "0.2.0"},
    ),
    # https://github.com/vllm-project/vllm/issues/46307
    Incident("utilization-at-profiling", _GEMMA, {"chip": PRO_6000}, vllm="0.22.1", packages=_OLD_NCCL),
    # https://github.com/mudler/LocalAI/issues/10722
    Incident(
        "cold-load-0.23",
        "vllm serve saricles/Qwen3-Coder-Next-NVFP4-GB10 --gpu-memory-utilization 0.7",
        {"vllm": "0.24.0"},
        vllm="0.23.0",
    ),
    # https://github.com/AEON-7/vllm-ultimate-dgx-spark/issues/9
    Incident(
        "kv-cache-bytes-unchecked",
        "vllm serve AEON-7/Qwen3.6-27B-FP8 --kv-cache-memory-bytes 34359738368 --max-num-seqs 64 --kv-cache-dtype fp8",
        {"command": "vllm serve AEON-7/Qwen3.6-27B-FP8 --max-num-seqs 64 --kv-cache-dtype fp8"},
        vllm="0.24.0",
    ),
    # https://github.com/vllm-project/vllm/issues/55569
    Incident(
        "glm-5.3-long-prefill",
        f"{_GLM} --max-model-len 262144",
        {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        nodes=2,
        vllm="0.28.1rc1.dev200+gabcdef012",
    ),
    Incident(
        "nemotron-super-long-prefill",
        _NEMOTRON,
        {"chip": PRO_6000},
        vllm="0.19.2rc1.dev134+gfe9c3d6c5",
        driver="595.84",
        container="vllm/vllm-openai:cu130-nightly",
        env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "VLLM_NVFP4_GEMM_BACKEND": "marlin"},
    ),
    # https://github.com/NVIDIA/dgx-spark-playbooks/issues/97
    Incident(
        "deepseek-v4-long-prefill",
        f"{_V4} --max-model-len 1048576 --max-num-batched-tokens 8192",
        {"command": f"{_V4} --max-model-len 65536 --max-num-batched-tokens 8192"},
        nodes=2,
        vllm="0.25.2.dev0+g752a3a504.d20260714",
        container="ghcr.io/anemll/dspark-vllm-gx10:0.1.1",
    ),
    # https://github.com/flashinfer-ai/flashinfer/issues/3634
    Incident(
        "flashinfer-jit-jobs",
        "vllm serve saricles/Qwen3-Coder-Next-NVFP4-GB10",
        {"env": {"MAX_JOBS": "4"}},
        vllm="0.23.0",
        packages={"flashinfer-jit-cache": "", "flashinfer-python": "0.6.12"},
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/205
    Incident(
        "fastsafetensors-gemma-4",
        f"{_GEMMA} --load-format fastsafetensors",
        {"command": f"{_GEMMA} --load-format instanttensor"},
        vllm="0.19.2rc1.dev100+gabcdef012",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/29403
    Incident(
        "fastsafetensors-tensor-parallel",
        "vllm serve Qwen/Qwen3-VL-235B-A22B-Instruct-FP8 -tp 2 --load-format fastsafetensors "
        "--gpu-memory-utilization 0.95",
        {"packages": {"fastsafetensors": "0.4.0"}},
        nodes=2,
        vllm="0.12.0",
        packages={"fastsafetensors": "0.1.15", "transformers": "4.57.2"},
    ),
    # https://github.com/vllm-project/vllm/pull/53007
    Incident(
        "dflash-large-blocks",
        "vllm serve Intel/Qwen3.5-122B-A10B-int4-AutoRound " + drafting("dflash", 5, model="z-lab/Qwen3.5-122B-DFlash"),
        {"vllm": "0.28.0"},
        vllm="0.30.0",
    ),
    # https://github.com/vllm-project/vllm/issues/55800
    Incident(
        "dflash2-admission",
        f"{_GLM} --max-model-len 262144 " + drafting("dflash", 7, model="incoai/GLM-5.3-Flash-DFlash2"),
        {"command": f"{_GLM} --max-model-len 262144"},
        vllm="0.1.dev20051+g487ecf187",
        chip="NVIDIA H100 80GB HBM3",
        container="vllm/vllm-openai:glm53-flash-x86_64-cu130",
    ),
    # https://github.com/vllm-project/vllm/issues/43559, a comment on a Spark
    Incident(
        "mtp-prefix-caching-hybrid",
        f"{_QWEN36} {drafting('mtp', 2)}",
        {"command": _QWEN36},
        vllm="0.25.1rc1.dev300+gabcdef012",
        packages=_OLD_NCCL,
    ),
    # https://github.com/NVIDIA/dgx-spark-playbooks/issues/89
    Incident(
        "mtp-prefix-caching-hybrid",
        f"vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 {QWEN_TOOLS} {drafting('mtp')} --kv-cache-dtype fp8",
        {"command": f"vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --no-enable-prefix-caching {drafting('mtp')}"},
        vllm="0.24.0",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/54360
    Incident(
        "speculative-prefix-caching-inert",
        f"vllm serve unsloth/Qwen3.8-27B-NVFP4 --kv-cache-dtype fp8 --max-model-len 65536 {drafting('mtp', 2)}",
        {"vllm": "0.24.0"},
        vllm="0.28.1rc1.dev43+g6f7df92a8",
        container="vllm/vllm-openai:nightly",
        env={"CUTE_DSL_ARCH": "sm_121a"},
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/363
    Incident(
        "deepseek-v4-garbled",
        f"{_V4} {drafting('mtp', 2)}",
        {"vllm": "0.28.0"},
        nodes=2,
        vllm="0.26.1rc1.dev1257+g94d96e244.d20260827",
        container="eugr/spark-vllm-b12x:latest",
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/349
    Incident(
        "b12x-deepseek-image-of-august",
        _V4,
        {"vllm": "0.1.dev19023+g30038602b.d20260805"},
        nodes=2,
        vllm="0.1.dev20003+gad848fc41.d20260815",
        container="vllm-node-b12x",
    ),
    # https://github.com/MiaAI-Lab/GLM-5.3-Flash-NVFP4-Dual-DGX-Spark/issues/1
    Incident(
        "glm-5.3-native-fp4-moe",
        f"{_GLM_NVFP4} {drafting('mtp', 4)}",
        {"command": f"{_GLM_NVFP4} --moe-backend marlin"},
        nodes=2,
        vllm="0.1.dev2+g933876c38",
        packages={"flashinfer-python": "0.6.18.dev20260819", "nvidia-nccl-cu13": "2.30.7"},
    ),
    # https://github.com/vllm-project/vllm/issues/49886
    Incident(
        "glm-5.2-sparse-mla",
        "vllm serve nvidia/GLM-5.2-NVFP4 --pipeline-parallel-size 6 --kv-cache-dtype fp8 --moe-backend marlin",
        {"chip": "NVIDIA B200"},
        nodes=6,
        vllm="0.26.0",
        packages={"flashinfer-python": "0.6.14", **_OLD_NCCL},
    ),
    # https://github.com/vllm-project/vllm/issues/48898
    Incident(
        "nvfp4-linear-unaligned",
        "vllm serve Org/Qwen2.5-VL-72B-Instruct-NVFP4 --tensor-parallel-size 8",
        {"command": "vllm serve Org/Qwen2.5-VL-72B-Instruct-NVFP4 -tp 8 --linear-backend marlin"},
        vllm="0.25.1",
        chip="NVIDIA RTX 6000D",
        packages={"flashinfer-python": "0.6.13", "flashinfer-jit-cache": "", **_OLD_NCCL},
    ),
    # https://github.com/NVIDIA/cutlass/issues/3227
    Incident(
        "cutlass-dsl-4.5.0",
        "vllm serve Org/MiMo-V2.5-Pro-NVFP4-MXFP8-attn -tp 8 --moe-backend cutlass",
        {"packages": {"nvidia-cutlass-dsl": "4.5.1"}},
        nodes=8,
        vllm="0.1.dev1+g0891716c2.d20260509",
        packages={"nvidia-cutlass-dsl": "4.5.0"},
    ),
    # https://github.com/vllm-project/vllm/issues/41477
    Incident(
        "gpt-oss-marlin-harmony",
        "vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.7",
        {"chip": "NVIDIA H100 80GB HBM3"},
        vllm="0.20.0",
        driver="580.142",
        container="vllm/vllm-openai:nightly-aarch64",
        packages=_OLD_NCCL,
    ),
    # https://github.com/flashinfer-ai/flashinfer/issues/3334
    Incident(
        "mxfp4-bf16-moe",
        "vllm serve openai/gpt-oss-20b -tp 2 --enforce-eager --trust-remote-code",
        {"env": {}},
        vllm="0.20.2rc1.dev353+gaefad089a",
        chip="NVIDIA H200",
        env={"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "1"},
        packages={"flashinfer-python": "0.6.11.post2", **_OLD_NCCL},
    ),
    # https://github.com/vllm-project/vllm/issues/50292
    Incident(
        "attention-backend-variable",
        "vllm serve Qwen/Qwen2.5-0.5B-Instruct",
        {"env": {}},
        vllm="0.26.0",
        chip="NVIDIA GeForce RTX 3060",
        env={"VLLM_ATTENTION_BACKEND": "TRITON_ATTN"},
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/50707
    Incident(
        "dflash-flash-attn",
        "vllm serve Qwen/Qwen3.5-122B-A10B " + drafting("dflash", 8, model="z-lab/Qwen3.5-122B-A10B-DFlash"),
        {"vllm": "0.28.0"},
        vllm="0.26.0",
        container="vllm/vllm-openai:v0.26.0-aarch64-ubuntu2404",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/49076
    Incident(
        "b12x-linear-fp8-gdn",
        "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --linear-backend flashinfer_b12x",
        {"command": "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"},
        vllm="0.25.1",
        packages=_OLD_NCCL,
    ),
    # https://github.com/vllm-project/vllm/issues/53836
    Incident("gemma-4-head-size", f"{_GEMMA} --quantization fp8", {"vllm": "0.28.0"}, vllm="0.27.1"),
    # https://github.com/vllm-project/vllm/issues/48848
    Incident(
        "gemma-4-mtp-embedding",
        """vllm serve google/gemma-4-31B-it --speculative-config '{"model": "google/gemma-4-31B-it-assistant"}'""",
        {"vllm": "0.27.1"},
        vllm="0.25.1",
        packages=_OLD_NCCL,
    ),
    # https://github.com/AEON-7/vllm-ultimate-dgx-spark/pull/4
    Incident(
        "deepseek-v4-cutlass-dsl",
        _V4,
        {"packages": {"nvidia-cutlass-dsl": "4.5.2"}},
        nodes=2,
        vllm="0.24.0",
        packages={"nvidia-cutlass-dsl": "4.6.0", "flashinfer-python": "0.6.14"},
    ),
    Incident(
        "deepseek-v4-flashinfer-api",
        _V4,
        {"packages": {"flashinfer-python": "0.6.14"}},
        nodes=2,
        vllm="0.24.0",
        packages={"flashinfer-python": "0.6.12"},
    ),
    # https://github.com/eugr/spark-vllm-docker/issues/400
    Incident(
        "deepseek-v4-vision-cuda-graphs",
        "vllm serve deepseek-ai/DeepSeek-V4-Flash-Vision-Exp -tp 2",
        {"command": "vllm serve deepseek-ai/DeepSeek-V4-Flash-Vision-Exp -tp 2 --enforce-eager"},
        nodes=2,
        vllm="0.29.0",
    ),
    # https://github.com/vllm-project/vllm/pull/38423
    Incident(
        "nvfp4-illegal-instruction",
        "vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
        {"vllm": "0.19.1", "packages": {"flashinfer-python": "0.6.7"}},
        vllm="0.18.0",
        packages={"flashinfer-python": "0.6.6", "transformers": "4.57.6"},
    ),
    # https://github.com/vllm-project/vllm/issues/30163
    Incident(
        "triton-ptxas-sm121",
        "vllm serve lukealonso/GLM-4.6-NVFP4 -tp 2",
        {"vllm": "0.20.0"},
        nodes=2,
        vllm="0.11.2",
        driver="580.95.05",
        packages={"flashinfer-python": "0.5.2", "transformers": "4.57.1"},
    ),
    # https://github.com/runpod-workers/worker-vllm/pull/258
    Incident(
        "transformers-5-old-vllm",
        "vllm serve Qwen/Qwen2.5-3B-Instruct",
        {"packages": {"transformers": "4.57.6"}},
        vllm="0.11.0",
        chip="NVIDIA H100 80GB HBM3",
        packages={"transformers": "5.1.0"},
    ),
    # requirements/common.txt of vLLM 0.33.0
    Incident(
        "transformers-5.21",
        "vllm serve Qwen/Qwen3-8B",
        {"packages": {"transformers": "5.20.1"}},
        vllm="0.21.0",
        packages={"transformers": "5.23.0", **_OLD_NCCL},
    ),
    # https://github.com/flashinfer-ai/flashinfer/issues/3294
    Incident(
        "flashinfer-cubin-gb10",
        "vllm serve Qwen/Qwen3-8B",
        {"packages": {}},
        base="nvidia/cuda:13.0.2-devel-ubuntu24.04",
        packages={"flashinfer-cubin": "0.6.13"},
    ),
    # https://github.com/vllm-project/vllm/issues/49547
    Incident(
        "flashinfer-cudagraphs-drafting",
        f"{_QWEN36} --attention-backend FLASHINFER {drafting('mtp', 2)}",
        {"vllm": "0.28.0"},
        vllm="0.26.0",
        packages=_OLD_NCCL,
    ),
    # https://github.com/0xBakeer/inference-atlas/pull/53
    Incident(
        "qwen3.8-flash-next-mtp-depth",
        f"vllm serve RadixArk/Qwen3.8-Flash-Next-NVFP4 -tp 2 {drafting('mtp', 6)}",
        {"command": f"vllm serve RadixArk/Qwen3.8-Flash-Next-NVFP4 -tp 2 {drafting('mtp', 4)}"},
        nodes=2,
        vllm="0.1.dev20073+g8e685d198",
    ),
    # https://github.com/vllm-project/vllm/issues/56077
    Incident(
        "ngram-tool-calls",
        f"vllm serve Qwen/Qwen3.8-27B {QWEN_TOOLS} {drafting('ngram', 4)}",
        {"command": f"vllm serve Qwen/Qwen3.8-27B {QWEN_TOOLS}"},
        vllm="0.28.0",
        chip="NVIDIA H100 PCIe",
    ),
    # https://github.com/vllm-project/vllm/issues/54928
    Incident(
        "dflash2-greedy-answers",
        f"vllm serve Qwen/Qwen3.8-27B {QWEN_TOOLS} {drafting('dflash', 7, model='incoai/Qwen3.8-27B-DFlash2')}",
        {"command": f"vllm serve Qwen/Qwen3.8-27B {QWEN_TOOLS} {drafting('mtp', 2)}"},
        vllm="0.26.1rc1.dev942+g5a4c8d992",
        chip="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        packages={"nvidia-nccl-cu13": "2.30.7"},
    ),
    # https://github.com/gyliu513/langX101/issues/409
    Incident(
        "nvidia-image-forward-compatibility",
        "vllm serve openai/gpt-oss-120b",
        {"driver": "595.84"},
        vllm="0.22.1",
        driver="580.142",
        base="nvcr.io/nvidia/vllm:26.06-py3",
    ),
)

"""Recipes of version 2, which are sparkrun's: https://github.com/spark-arena/sparkrun/blob/main/RECIPES.md.

A recipe without a command gets one from its defaults, with sparkrun's table of options.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from builder.base import yaml_file
from builder.base.errors import Problem
from builder.definitions import shell
from builder.definitions.fields import SCHEMAS

if TYPE_CHECKING:
    from builder.base.yaml_file import YamlPath
    from builder.definitions.shell import Scalar


SCHEMA = SCHEMAS / "recipe_v2.schema.json"


def keys() -> tuple[str, ...]:
    return tuple(yaml_file.schema(SCHEMA)["properties"])


# The format is version 2 if the version is above 1, or if a key exists only in sparkrun. sparkrun also reads version 1,
# and its users add keys to such recipes: a recipe that is valid in version 1 is version 1.

_VERSIONS = ("recipe_version", "sparkrun_version", "version")
_JSON = re.compile(r"(?<!\{)\{\s*\"")
_OWN_KEYS = frozenset(
    ("builder", "metadata", "runtime_config", "min_nodes", "max_nodes", "include", "overrides", "containers")
)


def is_version_2(data: Mapping[str, Any]) -> bool:
    """True for a recipe that only sparkrun can read."""
    if _says_so(data):
        return True
    if missing := {"name", "container", "command"} - {*data}:
        # In sparkrun, the name of a recipe is its file name.
        return is_marked(data) or (missing == {"name"} and "model" in data)
    runtime, command = data.get("runtime"), str(data["command"])
    if runtime is not None:
        is_of_both = version_of(data.get("recipe_version", 1)) == 1 and str(runtime).startswith(("vllm", "eugr"))
        if not is_of_both:
            return True
    # In version 1, the braces of JSON are doubled.
    is_readable = not shell.parse_placeholders(command)[1]
    return not is_readable and (is_marked(data) or ("model" in data and bool(_JSON.search(command))))


def is_marked(data: Mapping[str, Any]) -> bool:
    """True for a recipe with a key that exists only in sparkrun."""
    return _says_so(data) or data.get("runtime") is not None or any(key in data for key in _OWN_KEYS)


def _says_so(data: Mapping[str, Any]) -> bool:
    return any(version_of(data.get(key)) in range(2, 5) for key in _VERSIONS)


def version_of(value: object) -> int | None:
    """The number of a version, written as ``2``, ``"2"`` or ``"2.0"``; None for anything else."""
    try:
        return int(float(str(value)))
    except (ValueError, OverflowError):
        return None


# The runtimes with vLLM, each with its backend for several machines; None if the recipe's command decides.
_RUNTIMES: dict[str, str | None] = {
    "": None,
    "vllm": None,
    "vllm-distributed": "none",
    "vllm-ray": "ray",
    "eugr-vllm": "ray",
}
# Without a key, the beginning of a command names the runtime.
_OF_COMMAND = {
    "sglang": re.compile(r"sglang\s+serve\b|python3?\s+-m\s+sglang\.launch_server\b"),
    "llama-cpp": re.compile(r"llama-server\b"),
    "trtllm": re.compile(r"trtllm-serve|mpirun\b.*trtllm"),
}
_RAY = re.compile(r"--distributed-executor-backend\s+ray\b")


def foreign_problem(data: Mapping[str, Any], text: str, file: str) -> Problem | None:
    """The problem if a recipe is only a part of another recipe, or uses another program than vLLM; otherwise None."""
    if data.get("include") is not None:
        message = "builder does not read other recipes that a recipe includes; `sparkrun export recipe NAME` prints the"
        return Problem(yaml_file.location_of(("include",), text, file), f"{message} whole recipe")
    written, command = data.get("runtime"), str(data.get("command") or "").strip()
    path, named = ("runtime",), "" if written is None else str(written)
    if not named:
        path, named = ("command",), next((name for name, begins in _OF_COMMAND.items() if begins.match(command)), "")
    if named in _RUNTIMES and isinstance(written, str | None):
        return None
    shown = named if len(named) <= 40 else f"{named[:39]}…"
    message = f"this recipe is for the runtime `{shown}`; builder serves only with vLLM"
    return Problem(yaml_file.location_of(path, text, file), message)


# The values of a recipe in the form of `recipe.Recipe`.

# sparkrun's default image (default_image_prefix of its runtimes).
DEFAULT_CONTAINER = "ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:latest"
# The path where sparkrun mounts the model cache. Commands and variables of its recipes contain it.
_CACHE = "/cache/huggingface"
_MOUNT = f"~/.cache/huggingface:{_CACHE}"


def values(data: Mapping[str, Any], text: str, file: str) -> dict[str, Any]:
    """``data`` with the keys and meanings of version 1, and the keys of `recipe.Recipe` for version 2. Raises the
    ValueError of `texts`."""
    defaults = _defaults(data, text)
    command = _command(data, defaults)
    before = tuple(step for step in data.get("pre_exec") or () if isinstance(step, str))
    for template in (command, *before):
        filled(template, texts(defaults), shell.SPANS)
    metadata = data.get("metadata") or {}
    settings = data.get("runtime_config") or {}
    fewest, most = data.get("min_nodes") or 1, data.get("max_nodes")
    mode = data.get("mode") or "auto"
    solo = bool(data.get("solo_only")) or mode == "solo" or (mode == "auto" and most == 1)
    several = bool(data.get("cluster_only")) or mode == "cluster" or (mode == "auto" and fewest > 1)
    revision, further = _of_distribution(data)
    mounts = [_MOUNT] if re.search(rf"(?<![\w./~-]){_CACHE}\b", text) else []
    return {
        **data,
        "name": data.get("name") or PurePath(file).stem,
        "description": data.get("description") or metadata.get("description"),
        "model_revision": data.get("model_revision") or revision,
        "draft_model": data.get("draft_model") or further,
        "container": data.get("container") or DEFAULT_CONTAINER,
        "mods": data.get("mods") or settings.get("mods"),
        "build_args": data.get("build_args") or settings.get("build_args"),
        "volumes": [*(data.get("volumes") or ()), *mounts],
        "env": {name: str(value) for name, value in (data.get("env") or {}).items() if not _of_caller(name, value)},
        "defaults": defaults,
        "command": command,
        "cluster": _backend(data),
        "solo_only": solo,
        "cluster_only": several,
        "min_nodes": 1 if solo else max(fewest, 2) if several else fewest,
        "max_nodes": 1 if solo else most,
        "before": before,
    }


def _defaults(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The values for the placeholders. Doubled braces in a value become single braces, as in a command. Without a
    command, JSON is one argument of the option that its key names."""
    defaults = dict(data.get("defaults") or {})
    for key, value in defaults.items():
        if isinstance(value, str) and "{{" in value:
            defaults[key] = value.replace("{{", "{").replace("}}", "}")
    for key, value in defaults.items() if not str(data.get("command") or "").strip() else ():
        written = json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value).strip()
        if written[:1] in {"{", "["}:
            defaults[key] = shlex.quote(written)
    # sparkrun sets these keys itself. Where its cluster has no folder with the weights, the path is the model's name.
    placed = (data.get("cluster_config") or {}).get("resolved_model_path") or data["model"]
    own = {"model_revision": data.get("model_revision"), "resolved_model_path": placed}
    return {**{key: value for key, value in own.items() if value and f"{{{key}}}" in text}, **defaults}


def _of_caller(name: str, value: object) -> bool:
    """True for a variable whose value comes from the user who starts the server: ``HF_TOKEN: ${HF_TOKEN}``."""
    return str(value) in {f"${name}", f"${{{name}}}"}


def _of_distribution(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The revision of the model, and the first other model, in the lists of models for the machines."""
    entries = ((data.get("distribution_config") or {}).get("models") or {}).get("entries") or ()
    named = [entry if isinstance(entry, dict) else {"name": entry} for entry in entries]
    own = {"{model}", data["model"]}
    revisions = (entry.get("revision") for entry in named if entry.get("name") in own)
    others = (str(entry["name"]) for entry in named if entry.get("name") and entry["name"] not in own)
    return next(filter(None, revisions), None), next((name for name in others if "{" not in name), None)


def _backend(data: Mapping[str, Any]) -> str | None:
    backend = _RUNTIMES[data.get("runtime") or ""]
    if backend or data.get("cluster"):
        return backend or data["cluster"]
    default = (data.get("defaults") or {}).get("distributed_executor_backend")
    return "ray" if str(default).lower() == "ray" or _RAY.search(data.get("command") or "") else None


# The command: sparkrun's own tables of options, in its order (runtimes/_vllm_common.py of version 0.4.2).

_SWITCHES = frozenset(
    {
        *("enforce_eager", "enable_prefix_caching", "trust_remote_code", "enable_auto_tool_choice"),
        *("enable_chunked_prefill", "async_scheduling", "enable_prompt_tokens_details", "enable_force_include_usage"),
        *("enable_request_id_headers", "enable_flashinfer_autotune", "scheduler_reserve_full_isl"),
        *("disable_custom_all_reduce", "enable_mamba_shared_prefix_checkpoint"),
    }
)
# Switches that vLLM turns on by itself: `false` turns them off.
_TURNED_OFF = frozenset(
    {
        *("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "enable_flashinfer_autotune"),
        "scheduler_reserve_full_isl",
    }
)
_KEYS = (
    *("port", "host", "gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("served_model_name", "dtype", "quantization", "enforce_eager", "enable_prefix_caching", "trust_remote_code"),
    *("pipeline_parallel", "data_parallel", "kv_cache_dtype", "otlp_traces_endpoint", "api_key", "attention_backend"),
    *("load_format", "reasoning_parser", "tool_call_parser", "chat_template", "speculative_config", "tokenizer_mode"),
    *("mm_encoder_tp_mode", "block_size", "seed", "enable_auto_tool_choice", "enable_chunked_prefill"),
    *("async_scheduling", "generation_config", "hf_overrides", "compilation_config", "attention_config"),
    *("model_loader_extra_config", "default_chat_template_kwargs", "limit_mm_per_prompt", "mm_processor_cache_gb"),
    *("kv_cache_memory_bytes", "max_cudagraph_capture_size", "long_prefill_token_threshold", "mamba_cache_mode"),
    *("mamba_cache_dtype", "mamba_ssm_cache_dtype", "reasoning_parser_plugin", "media_io_kwargs", "video_pruning_rate"),
    *("allowed_local_media_path", "prefix_match_unit", "enable_mamba_shared_prefix_checkpoint"),
    *("safetensors_load_strategy", "moe_backend", "enable_prompt_tokens_details", "enable_force_include_usage"),
    *("enable_request_id_headers", "enable_flashinfer_autotune", "linear_backend", "gdn_prefill_backend"),
    *("gdn_decode_kernel", "kda_prefill_backend", "mamba_backend", "recurrent_checkpoint_policy"),
    *("prefix_cache_retention_interval", "engram_config", "dcp_comm_backend", "prefill_policy"),
    *("prefill_compute_share", "prefill_compute_half_life", "prefill_schedule_interval", "max_parallel_prefills"),
    *("decode_refill_target", "scheduler_reserve_full_isl", "jit_monitor_mode", "disable_custom_all_reduce"),
)
_OPTIONS = {key: f"--{key.replace('_', '-')}" for key in _KEYS}
_OPTIONS |= {"pipeline_parallel": "-pp", "data_parallel": "--data-parallel-size"}
SERVED = "--served-model-name"
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})


def _command(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """The command's template: as written, plus the model's name if it lacks one; or made from the ``defaults``."""
    defaults = {key: value for key, value in defaults.items() if value is not None}
    written = str(data.get("command") or "").strip()
    if not written:
        return " ".join(_parts(defaults))
    template = re.sub(r"\\[ \t]+\n", "\\\n", written)
    if "served_model_name" not in defaults or SERVED in filled(template, texts(defaults), shell.SPANS):
        return template
    return shell.with_argument(template, {"model", *defaults}, f"{SERVED} {{served_model_name}}")


def _parts(defaults: Mapping[str, Any]) -> Iterator[str]:
    yield from ("vllm", "serve", "{model}")
    if defaults.get("tensor_parallel"):
        yield "-tp {tensor_parallel}"
    for key, option in _OPTIONS.items():
        if key not in defaults:
            continue
        if key not in _SWITCHES:
            yield f"{option} {{{key}}}"
        elif str(defaults[key]).lower() in _TRUE:
            yield option
        elif key in _TURNED_OFF:
            yield f"--no-{option[2:]}"


# Values may contain placeholders of other values. They are filled until nothing changes.
NAMED = r"\{([a-z][a-z0-9_-]*)\}"
"""The form of a placeholder, with or without a value."""


def texts(defaults: Mapping[str, Scalar]) -> dict[str, str]:
    """The text of each value, with the placeholders of other values filled. Raises ValueError if values refer to each
    other in a circle, or if a text is longer than the maximum of an argument."""
    result = {key: str(value) for key, value in defaults.items() if value is not None}
    for _ in range(len(result) + 1):
        before = result
        result = {key: filled(value, before) for key, value in before.items()}
        if result == before:
            return result
    key = next(key for key, value in result.items() if value != before[key])
    raise ValueError(f"the value of {{{key}}} refers to itself")


def filled(template: str, replacing: Mapping[str, str], spans: re.Pattern[str] = shell.IN_BRACES) -> str:
    """``template`` with the values of ``replacing`` at the ``spans``; other text in braces stays. Raises ValueError if
    the text is longer than the maximum of an argument."""
    parts: list[str] = []
    length = at = 0
    for match in spans.finditer(template):
        key = match[0].strip("{}") if match[0].endswith("}") else ""
        parts += (template[at : match.start()], replacing.get(key, match[0]))
        at, length = match.end(), length + len(parts[-2]) + len(parts[-1])
        if length > shell.LONGEST_ARGUMENT:
            raise ValueError("its values, with all placeholders filled in, are longer than 128 KiB")
    return "".join((*parts, template[at:]))


# The additional variables of sparkrun on each of several machines (get_cluster_env of its runtimes).
CLUSTER_ENVIRONMENT: dict[str, dict[str, str]] = {
    "mp": {"NCCL_CUMEM_ENABLE": "0"},
    "ray": {"RAY_memory_monitor_refresh_ms": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
}


# Notes on keys that builder handles differently, or ignores.

_OTHER_IMAGE = "`container` names the image; builder makes the image from its own definition"
_WITHOUT_EFFECT = {
    "builder": _OTHER_IMAGE,
    "builder_config": _OTHER_IMAGE,
    "benchmark": "`builder bench` has its own profiles",
    "containers": "one image serves on every machine",
    "overrides": "the values under `defaults` and `env` hold on every machine",
    "post_exec": "builder runs no command after the server answers",
    "post_commands": "builder runs no command on this machine",
    "stop_after_post": "the server runs until `builder stop`",
    "runtime_cache": "builder keeps compiled kernels with each image",
    "scheduler": "`--node` names the machines",
    "layout": "`--node` names the machines",
    "readiness": "builder waits until the server answers",
}
# Settings that builder's containers set themselves.
_AS_HERE = frozenset({"auto_remove", "restart_policy", "gpus", "ipc", "network", "cap_add", "devices", "ulimit"})


def notes(data: Mapping[str, Any], text: str, file: str) -> Iterator[Problem]:
    """Notes on everything in a recipe that has another effect than in sparkrun, or no effect."""
    for path, message in (*_without_effect(data), *_not_brought(data), *_of_variables(data), *_unused(data)):
        yield Problem(yaml_file.location_of(path, text, file), message)


def _without_effect(data: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    if version_of(data.get("recipe_version")) == 1 and shell.parse_placeholders(str(data.get("command") or ""))[1]:
        yield (
            ("recipe_version",),
            "builder reads the recipe as version 2, like sparkrun, because the braces in its command are single",
        )
    if not data.get("container"):
        yield (), f"the recipe names no `container`: builder uses {DEFAULT_CONTAINER}, as sparkrun does"
    for key, reason in _WITHOUT_EFFECT.items():
        if data.get(key):
            yield (key,), f"`{key}` has no effect: {reason}"
    if data.get("executor") not in (None, "", "docker"):
        yield ("executor",), "`executor` has no effect: builder starts servers with Docker"
    for key, value in (data.get("executor_config") or {}).items():
        if value and key not in _AS_HERE:
            yield ("executor_config", key), f"`executor_config.{key}` has no effect: builder makes its own container"
    for key in data.get("runtime_config") or ():
        if key not in {"mods", "build_args"}:
            yield ("runtime_config", key), f"`runtime_config.{key}` has no effect: builder has no such setting"


def _not_brought(data: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Notes on commands, files and models that sparkrun prepares on the machines before the server starts."""
    for index, step in enumerate(data.get("pre_exec") or ()):
        message = "builder copies no files into the container: use a mod or `volumes:`"
        if isinstance(step, str):
            message = "this command runs in the container before each start of the server; a mod runs once, at build"
        yield ("pre_exec", index), message
    downloaded = {data["model"], "{model}", _of_distribution(data)[1]}
    for index, entry in enumerate(((data.get("distribution_config") or {}).get("models") or {}).get("entries") or ()):
        if (entry.get("name") if isinstance(entry, dict) else entry) not in downloaded:
            path = ("distribution_config", "models", "entries", index)
            yield path, "builder does not download this model automatically: use `builder download MODEL`"


def _of_variables(data: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Notes on variables that sparkrun reads from the machine, and on variables that are not text."""
    for name, value in (data.get("env") or {}).items():
        message = ""
        if _of_caller(name, value):
            # Every server gets the token.
            message = "" if name == "HF_TOKEN" else f"{name} comes from your environment: pass it with `--env {name}`"
        elif isinstance(value, dict):
            message = f"{name}: YAML reads bare braces as the mapping {value}, as in sparkrun; quote the value"
        elif re.search(r"(?<![${])\{(config|launch)\.", str(value)):
            message = f"{name}: builder does not fill in the braces in its value; write the value"
        elif re.search(r"\$\{?[A-Za-z_]", str(value)):
            message = f"{name}: variables in its value are not expanded; a recipe does not read your environment"
        if message:
            yield ("env", name), message


def _unused(data: Mapping[str, Any]) -> Iterator[tuple[YamlPath, str]]:
    """Notes on defaults that reach no option, and on placeholders without a value."""
    defaults = data.get("defaults") or {}
    command = str(data.get("command") or "")
    if not command.strip():
        reaching = {*_OPTIONS, "tensor_parallel", "model", "distributed_executor_backend"}
        for key in (key for key in defaults if key not in reaching):
            yield ("defaults", key), f"`{key}` has no effect: without a `command`, no option of vLLM uses this default"
        return
    own = {"model", "resolved_model_path", *(["model_revision"] if data.get("model_revision") else [])}
    for key in dict.fromkeys(re.findall(rf"(?<![${{]){NAMED}", command)):
        if key not in own and defaults.get(key) is None:
            yield ("command",), f"{{{key}}} has no value and stays as written"

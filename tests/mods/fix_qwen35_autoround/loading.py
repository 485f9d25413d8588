"""Loads Qwen3.5 configs with the transformers that Python finds: `python loading.py [CONFIG.py …]`.

Each CONFIG.py is vLLM's own class for such configs. Prints a JSON object: for each class what became of the config of
an AutoRound checkpoint, ``ok`` or the last line of the error, with the keys in question left out and kept as a list.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

if TYPE_CHECKING:
    from types import ModuleType

ROPE = {
    "rope_type": "default",
    "rope_theta": 10000000,
    "partial_rotary_factor": 0.25,
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
}


def config(kind: str, kept: bool) -> dict[str, Any]:
    """As config.json of a checkpoint; ``kept`` writes the keys that a set held, as JSON does."""
    text = {"model_type": f"{kind}_text", "num_hidden_layers": 4, "rope_parameters": ROPE}
    if kept:
        text["ignore_keys_at_rope_validation"] = ["mrope_section", "mrope_interleaved"]
    quantization = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}
    whole = {"model_type": kind, "text_config": text, "vision_config": {}, "quantization_config": quantization}
    loaded: dict[str, Any] = json.loads(json.dumps(whole))
    return loaded


def outcome(cls: Any, kind: str, kept: bool) -> str:
    try:
        cls.from_dict(config(kind, kept))
    except Exception as error:  # noqa: BLE001 - whatever it raises, its text is compared
        return str(error).strip().splitlines()[-1].strip()
    return "ok"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def main() -> int:
    found = {"version": transformers.__version__}
    classes: list[tuple[str, str, Any]] = [
        ("transformers", "qwen3_5", transformers.Qwen3_5Config),
        ("transformers", "qwen3_5_moe", transformers.Qwen3_5MoeConfig),
    ]
    for path in map(Path, sys.argv[1:]):
        names = {"qwen3_5": "Qwen3_5Config", "qwen3_5_moe": "Qwen3_5MoeConfig"}
        classes.append(("vllm", path.stem, getattr(module(path), names[path.stem])))
    for owner, kind, cls in classes:
        found[f"{owner} {kind}"] = outcome(cls, kind, kept=False)
        found[f"{owner} {kind}, kept"] = outcome(cls, kind, kept=True)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

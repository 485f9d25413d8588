"""A look at the GPU from inside an image: the card, the software that is to use it, and one of vLLM's own kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.containers import Container

# Importing vLLM reads some gigabytes from a cold disk, and a kernel may be compiled first.
PROBE_SECONDS = 900

# Each part says by itself what went wrong: the first failure must not hide the next. The last line is the answer.
_PROBE = """\
import importlib.metadata, json
facts = {"card": "", "capability": "", "architectures": [], "failures": {}, "versions": {}, "wanted": []}
def part(name, look):
    try:
        look()
    except BaseException as error:
        facts["failures"][name] = f"{type(error).__name__}: {error}"[:2000]
def card():
    import torch
    facts["available"] = bool(torch.cuda.is_available())
    if facts["available"]:
        facts["card"] = torch.cuda.get_device_name(0)
        facts["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
        facts["architectures"] = list(torch.cuda.get_arch_list())
def platform():
    import vllm
    from vllm.platforms import current_platform
    if not current_platform.is_cuda():
        raise RuntimeError(f"vLLM takes the platform for {current_platform.device_name or 'none'}")
def kernel():
    import torch
    from vllm import _custom_ops
    given = torch.ones(2, 64, dtype=torch.bfloat16, device="cuda")
    result = torch.empty_like(given)
    _custom_ops.rms_norm(result, given, torch.ones_like(given[0]), 1e-6)
    torch.cuda.synchronize()
    if not bool(torch.allclose(result.float(), given.float(), atol=0.02)):
        raise RuntimeError("rms_norm of ones is not ones")
for name in ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"):
    try:
        facts["versions"][name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
part("torch", card)
part("import", platform)
part("named", lambda: facts["wanted"].extend(
    line for line in importlib.metadata.requires("vllm") or () if line.lower().startswith("flashinfer")))
if facts.get("available"):
    part("kernel", kernel)
print()
print(json.dumps(facts))
"""


@dataclass(frozen=True)
class GpuFacts:
    """The answers: the ``card`` and its compute ``capability``, empty where torch has no GPU; the ``architectures``
    that torch has kernels for; the ``versions`` of FlashInfer's packages; what vLLM's metadata name of them
    (``wanted``); and the ``failures`` of torch, of the import of vLLM and of its kernel, by those names."""

    card: str
    capability: str
    architectures: tuple[str, ...]
    versions: Mapping[str, str]
    wanted: tuple[str, ...]
    failures: Mapping[str, str]


def read(container: Container, python: str) -> GpuFacts:
    """Asks the ``python`` of a running container that has the GPU. Raises ImageStateError where it gives no answer."""
    result = container.run([python, "-B", "-c", _PROBE], timeout=PROBE_SECONDS)
    try:
        return parse(json.loads((result.output.strip().splitlines() or [""])[-1]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ImageStateError(f"its Python does not answer; it ended with:\n{result.output.strip()[-2000:]}") from None


def parse(answer: Mapping[str, Any]) -> GpuFacts:
    """The facts of an answer. Raises KeyError or TypeError for another text."""
    return GpuFacts(
        card=" ".join(str(answer["card"]).split()),
        capability=str(answer["capability"]),
        architectures=tuple(map(str, answer["architectures"])),
        versions={str(name): str(version) for name, version in answer["versions"].items()},
        wanted=tuple(map(str, answer["wanted"])),
        failures={str(name): str(text) for name, text in answer["failures"].items()},
    )

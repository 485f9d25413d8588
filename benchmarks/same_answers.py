"""Measures how often `builder compare` is wrong, on many draws of texts: compares a small random model with
itself, and with planted faults of three strengths.

    python -m benchmarks.same_answers [--image NAME | --python PYTHON] [--itself N] [--draws N] [--depth TOKENS]

Each variant is served once: on the cpu image, or on this machine's GPU with the vLLM of ``--python``. The first model
rates once for each draw, and so does each variant.

In a comparison of a model with itself, one process of the server rates as the first image, and the next as the second,
as in `builder compare`. A process is the first image of `PART` comparisons, and the second of others. Texts and depths
differ between comparisons. No questions are asked, because a random model answers none.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sandbox import sandbox
from builder.base import processes
from builder.base.errors import MeasuringError
from builder.base.events import ignore
from builder.engine import client as endpoints
from builder.lab.measure import forced_texts, image_likeness, measurement
from builder.lab.measure.forced_texts import TextPlan
from tests import cpu_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.engine.client import Endpoint
    from builder.evidence.statistics import Likeness
    from builder.lab.measure.forced_texts import ForcedPrompts, RatedImage
    from builder.lab.measure.image_likeness import ImageLikeness
    from builder.lab.measure.measurement import ServedModel

HERE = Path(__file__).resolve().parent.parent / "tests/end_to_end"
# Files of vLLM and their changes. Keys are rotated by one position more than queries, in this many layers.
_MODEL = "model_executor/models/qwen3.py"
_TURN = "q, k = self.rotary_emb(positions, q, k)"
_TURNED = (
    "shift = 1 if any(f'layers.{{n}}.' in self.attn.layer_name for n in range({layers})) else 0; "
    "q0, k0 = q.clone(), k.clone(); q, _ = self.rotary_emb(positions, q, k); "
    "_, k = self.rotary_emb(positions + shift, q0, k0)"
)
# The last step of Triton's attention.
_KERNEL = "v1/attention/ops/triton_unified_attention.py"
_DIVIDED = "acc = acc / L[:, None]"


@dataclass(frozen=True)
class Variant:
    """A model of `faulty_models.py`, served with ``arguments``. ``edit`` is a file of vLLM, a text in the file, and the
    replacement."""

    title: str
    model: str
    arguments: Sequence[str] = ()
    edit: tuple[str, str, str] | None = None
    is_fault: bool = True


DENSE, MOE = "dense-none", "moe-none"
VERDICTS: tuple[Likeness, ...] = ("identical", "equivalent", "different", "cannot tell")
PART = 20
"""The number of comparisons of a model with itself that one process of its server begins."""
_DEPTHS = (1024, 512, 1024, 512, 1024, 512, 1024, 512, 2048, 0)  # depths of these, in turn; 0: the whole context
HARMLESS = (
    Variant("other batches (300 tokens at once)", DENSE, ("--max-num-batched-tokens", "300"), is_fault=False),
    Variant(
        "no prefix cache, 16 sequences", DENSE, ("--no-enable-prefix-caching", "--max-num-seqs", "16"), is_fault=False
    ),
)
_PLANTED = {
    "one layer's scale": ("dense-scale={}", ("0.005", "0.02", "0.1"), "{} off"),
    "one head": ("dense-head={}", ("0.1", "0.5", "1"), "weaker by {}"),
    "RoPE base": ("dense-rope={}", ("0.01", "0.1", "1"), "{} off"),
    "scale of cached values, one layer": ("dense-value={}", ("0.02", "0.1", "0.5"), "{} off"),
    "template cut": ("dense-template={}", ("1", "2", "3"), "part {}"),
    "eight-bit weights": ("dense-fp8={}", ("1", "2", "4"), "{} layers"),
    "two experts swapped": ("moe-experts={}", ("1", "2", "4"), "{} layers"),
}
# The weakest fault of each kind comes first.
FAULTS = tuple(
    variant
    for place in range(3)
    for variant in (
        *(
            Variant(f"{title}: {words.format(strengths[place])}", model.format(strengths[place]))
            for title, (model, strengths, words) in _PLANTED.items()
        ),
        Variant(
            f"position off by one: {2**place} layers", DENSE, edit=(_MODEL, _TURN, _TURNED.format(layers=2**place))
        ),
        *(
            Variant(f"another dtype: {dtype}", DENSE, ("--dtype", dtype))
            for dtype in ("float32", "float16")[place : place + 1]
        ),
    )
)


# On a GPU, all other variants use Triton's attention.
ON_GPU = (
    Variant("FlashInfer's attention", DENSE, ("--attention-backend", "FLASHINFER"), is_fault=False),
    Variant("cache of eight bits", DENSE, ("--kv-cache-dtype", "fp8")),
    *(
        Variant(f"attention kernel: {part} off", DENSE, edit=(_KERNEL, _DIVIDED, f"{_DIVIDED} * {1 + part}"))
        for part in (0.005, 0.02, 0.1)
    ),
)


@dataclass(frozen=True)
class Host:
    """Where vLLM runs. ``make`` runs `faulty_models.py` with arguments. ``serve`` starts a variant at a port. It yields
    a function that returns the end of the server's log if the server has ended, otherwise an empty text."""

    make: Callable[[list[str]], None]
    serve: Callable[[Variant, int], AbstractContextManager[Callable[[], str]]]


def main() -> None:
    """Runs all comparisons, and prints a row after each variant."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_answers", description="False alarms, and faults.")
    parser.add_argument("--image", default="", help="a cpu image that is here, in place of a new one")
    parser.add_argument("--python", default="", help="a Python that has vLLM, to serve on this machine's GPU")
    parser.add_argument("--itself", type=int, default=100, help="comparisons of each model with itself")
    parser.add_argument("--draws", type=int, default=5, help="draws of texts for each variant")
    parser.add_argument("--depth", type=int, default=2048, help="the deepest place, in tokens")
    parser.add_argument("--at-once", type=int, default=1, help="servers beside each other")
    parser.add_argument("--only", default="", help="variants whose title this pattern is found in")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up after SIGTERM, too
    variants = [*HARMLESS, *FAULTS, *(ON_GPU if arguments.python else ())]
    variants = [variant for variant in variants if re.search(arguments.only, variant.title)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="builder-bench-")))
        if arguments.python:
            host = Host(partial(_make_here, arguments.python, folder), partial(_serve_here, arguments.python, folder))
        else:
            endpoint = endpoints.find_endpoint(os.environ)
            image = arguments.image or stack.enter_context(sandbox(endpoint)).cpu()
            host = Host(partial(_make_in, endpoint, image, folder), partial(_serve_in, endpoint, image, folder))
        for kind in ("dense", "moe"):
            names = [each.model.partition("-")[2] for each in variants if each.model.startswith(kind)]
            host.make([kind, *dict.fromkeys(names)])
        print("| what | comparisons | identical | equivalent | different | cannot tell | apart | seconds each |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        _all(host, variants, arguments)


def _base_of(variant: Variant) -> str:
    return MOE if variant.model.startswith("moe") else DENSE


def _all(host: Host, variants: Sequence[Variant], arguments: argparse.Namespace) -> None:
    plans = [TextPlan(seed, arguments.depth) for seed in range(arguments.draws)]
    rated: dict[str, list[tuple[ForcedPrompts, RatedImage]]] = {}
    for base in sorted({_base_of(variant) for variant in variants}):
        with _served(host, Variant(base, base)) as server:
            rated[base] = [_rate(server, plan) for plan in plans]

    def beside_itself(base: str) -> list[ImageLikeness]:
        began = time.monotonic()
        seeds = range(arguments.itself * len(itself))[itself.index(base) :: len(itself)]
        own = [TextPlan(seed, _DEPTHS[number % len(_DEPTHS)]) for number, seed in enumerate(seeds)]
        found = list(_compare_itself(host, base, own))
        _print(f"{base.partition('-')[0]}, beside itself", found, began)
        return found

    def beside_base(variant: Variant) -> None:
        began = time.monotonic()
        with _served(host, variant) as server:
            own = rated[_base_of(variant)]
            found = [
                image_likeness.compare_images(given, first, _rate(server, plan, given)[1])
                for plan, (given, first) in zip(plans, own, strict=True)
            ]
        _print(variant.title if variant.is_fault else f"harmless: {variant.title}", found, began)

    itself = (DENSE, MOE) if arguments.itself else ()
    with ThreadPoolExecutor(arguments.at_once) as pool:
        if found := list(chain.from_iterable(pool.map(beside_itself, itself))):
            alarms = sum(each.verdict == "different" for each in found)
            most = _upper_bound(alarms, len(found))
            print(
                f"\n{alarms} false alarms in {len(found)} comparisons: at most {most:.2%} with a confidence of 95 %.\n",
                flush=True,
            )
        list(pool.map(beside_base, variants))


def _compare_itself(host: Host, base: str, plans: Sequence[TextPlan]) -> Iterator[ImageLikeness]:
    """Compares a model with itself by each plan. Starts one server more than there are parts: the last server rates
    only as the second image."""
    coming = iter(plans)
    waiting: list[tuple[TextPlan, tuple[ForcedPrompts, RatedImage]]] = []
    counts = Counter[str]()
    while (part := list(islice(coming, PART))) or waiting:
        with _served(host, Variant(base, base)) as server:
            for plan, (given, first) in waiting:
                likeness = image_likeness.compare_images(given, first, _rate(server, plan, given)[1])
                counts[likeness.verdict] += 1
                if likeness.verdict not in {"identical", "equivalent"}:
                    told = "; ".join(f"{each.kind} to {each.depth}: {each.difference}" for each in likeness.differing)
                    print(f"{base}, seed {plan.seed}: {likeness.verdict}: {told}", file=sys.stderr, flush=True)
                yield likeness
            waiting = [(plan, _rate(server, plan)) for plan in part]
        print(f"{time.strftime('%H:%M:%S')} {base}: {dict(counts)}", file=sys.stderr, flush=True)


def _upper_bound(alarms: int, runs: int) -> float:
    """The largest rate of alarms at which at most ``alarms`` in ``runs`` have a probability above 5 %: the one-sided
    bound of Clopper and Pearson."""
    low, high = 0.0, 1.0
    for _ in range(50):
        share = (low + high) / 2
        chance = math.fsum(math.comb(runs, n) * share**n * (1 - share) ** (runs - n) for n in range(alarms + 1))
        low, high = (share, high) if chance > 0.05 else (low, share)
    return high


def _rate(server: ServedModel, plan: TextPlan, given: ForcedPrompts | None = None) -> tuple[ForcedPrompts, RatedImage]:
    own, rated = forced_texts.rate_image(server, plan, "the model", ignore, given)
    return own, rated


def _print(title: str, found: Sequence[ImageLikeness], began: float) -> None:
    counts = Counter(each.verdict for each in found)
    apart = max(cell.compared.apart for each in found for cell in each.totals)
    seconds = (time.monotonic() - began) / len(found)
    cells = (title, len(found), *(counts[word] for word in VERDICTS), f"{apart:.5f}", f"{seconds:.1f}")
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


@contextmanager
def _served(host: Host, variant: Variant) -> Iterator[ServedModel]:
    port = processes.free_port()
    with host.serve(variant, port) as ended:
        until = time.monotonic() + 600
        while True:
            try:
                model = measurement.ask_served_model(f"http://127.0.0.1:{port}/v1")
                break
            except MeasuringError:
                if (log := ended()) or time.monotonic() > until:
                    raise SystemExit(log or f"{variant.title}: no answer after ten minutes") from None
                time.sleep(1)
        yield model


def _command(variant: Variant, models: str, port: int, *options: str) -> list[str]:
    serve = ["serve", f"{models}/{variant.model}", "--port", str(port), "--enforce-eager"]
    return [*serve, "--max-model-len", "8192", "--max-num-seqs", "4", *options, *variant.arguments]


# On the cpu image.


def _make_in(endpoint: Endpoint, image: str, folder: Path, arguments: list[str]) -> None:
    argv = ["python3", "/here/faulty_models.py", "/models", *arguments]
    cpu_image.run_in(endpoint, image, argv, {HERE: "/here", folder: "/models"})


@contextmanager
def _serve_in(endpoint: Endpoint, image: str, folder: Path, variant: Variant, port: int) -> Iterator[Callable[[], str]]:
    change = "pass"
    if variant.edit:
        file, text, other = variant.edit
        change = (
            f"from pathlib import Path; import vllm; p = Path(vllm.__file__).parent / {file!r}; t = p.read_text(); "
            f"assert {text!r} in t; p.write_text(t.replace({text!r}, {other!r}))"
        )
    serve = ["vllm", *_command(variant, "/models", port)]
    argv = ["sh", "-c", 'python3 -c "$1" && shift && exec "$@"', "sh", change, *serve]
    options = {
        "network_mode": "host",
        "init": True,  # a busy engine cannot remove a container with unreaped processes
        "shm_size": "1g",
        "cpu_shares": 512,  # half the share of other programs
        # Such a small model does not run faster with more threads.
        "environment": {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        },
        "labels": {"builder.test": "1"},
    }
    with cpu_image.started(endpoint, image, argv, {folder: "/models"}, **options) as container:

        def ended() -> str:
            container.reload()
            return container.logs(tail=40).decode() if container.status == "exited" else ""

        yield ended


# On this machine's GPU.


def _make_here(python: str, folder: Path, arguments: list[str]) -> None:
    subprocess.run([python, str(HERE / "faulty_models.py"), "--large", str(folder), *arguments], check=True)


@contextmanager
def _serve_here(python: str, folder: Path, variant: Variant, port: int) -> Iterator[Callable[[], str]]:
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    gpu = ["--attention-backend", "TRITON_ATTN", "--kv-cache-memory-bytes", str(2 << 30)]
    gpu += ["--gpu-memory-utilization", "0.1"]  # vLLM requires this at its start, independent of the cache
    with tempfile.TemporaryDirectory(prefix="builder-bench-") as place:
        if variant.edit:
            file, text, other = variant.edit
            found = [
                python,
                "-c",
                "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])",
            ]
            shutil.copytree(subprocess.check_output(found, text=True).strip(), Path(place, "vllm"))
            edited = Path(place, "vllm", file)
            before = edited.read_text(encoding="utf-8")
            assert text in before, f"{file} has no {text}"
            edited.write_text(before.replace(text, other), encoding="utf-8")
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, (place, environ.get("PYTHONPATH"))))
        argv = [python, "-m", "vllm.entrypoints.cli.main", *_command(variant, str(folder), port, *gpu)]
        log = Path(place, "log")
        with log.open("wb") as output:
            server = subprocess.Popen(argv, env=environ, stdout=output, stderr=output, start_new_session=True)
        try:
            yield lambda: "" if server.poll() is None else log.read_text(errors="replace")[-20000:]
        finally:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()

"""How often `builder compare` is wrong: a small random model beside itself on many draws of texts, and beside planted
faults at three strengths.

    python -m benchmarks.same_answers [--image NAME] [--itself N] [--draws N] [--depth TOKENS]

Each variant is served once, on the cpu image. The first model is rated once for each draw, and each variant once; the
model itself is rated again for each comparison with itself. Nobody is asked questions: a random model answers none.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sandbox import sandbox
from builder.base.errors import MeasuringError
from builder.base.events import ignore
from builder.engine import client as endpoints
from builder.lab.measure import served_model
from builder.lab.same import image_likeness, text_rating
from builder.lab.same.forced_texts import TextPlan
from tests import cpu_image
from tests.commands.serving import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.engine.client import Endpoint
    from builder.lab.measure.served_model import ServedModel
    from builder.lab.same.forced_texts import ForcedPrompts
    from builder.lab.same.image_likeness import ImageLikeness
    from builder.lab.same.text_rating import RatedImage

HERE = Path(__file__).resolve().parent.parent / "tests/end_to_end"
# Keys are turned by one position more than queries, in so many layers: vllm/model_executor/models/qwen3.py.
_TURN = "q, k = self.rotary_emb(positions, q, k)"
_TURNED = (
    "shift = 1 if any(f'layers.{{n}}.' in self.attn.layer_name for n in range({layers})) else 0; "
    "q0, k0 = q.clone(), k.clone(); q, _ = self.rotary_emb(positions, q, k); "
    "_, k = self.rotary_emb(positions + shift, q0, k0)"
)


@dataclass(frozen=True)
class Variant:
    """A model of `faulty_models.py`, served with ``arguments``; ``shifted`` layers have a wrong position."""

    title: str
    model: str
    arguments: Sequence[str] = ()
    shifted: int = 0
    is_fault: bool = True


DENSE, MOE = "dense-none", "moe-none"
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
# The weakest of each kind first.
FAULTS = tuple(
    variant
    for place in range(3)
    for variant in (
        *(
            Variant(f"{title}: {words.format(strengths[place])}", model.format(strengths[place]))
            for title, (model, strengths, words) in _PLANTED.items()
        ),
        Variant(f"position off by one: {2**place} layers", DENSE, shifted=2**place),
        *(
            Variant(f"another dtype: {dtype}", DENSE, ("--dtype", dtype))
            for dtype in ("float32", "float16")[place : place + 1]
        ),
    )
)


def main() -> None:
    """Runs all comparisons, and prints a table after each variant."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_answers", description="False alarms, and faults.")
    parser.add_argument("--image", default="", help="a cpu image that is here, in place of a new one")
    parser.add_argument("--itself", type=int, default=200, help="comparisons of the model with itself")
    parser.add_argument("--draws", type=int, default=5, help="draws of texts for each variant")
    parser.add_argument("--depth", type=int, default=2048, help="the deepest place, in tokens")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything is removed then, too
    endpoint = endpoints.find_endpoint(os.environ)
    with ExitStack() as stack:
        image = arguments.image or stack.enter_context(sandbox(endpoint)).cpu()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="builder-bench-")))
        for kind in ("dense", "moe"):
            names = [each.model.partition("-")[2] for each in FAULTS if each.model.startswith(kind)]
            argv = ["python3", "/here/faulty_models.py", "/models", kind, *dict.fromkeys(names)]
            cpu_image.run_in(endpoint, image, argv, {HERE: "/here", folder: "/models"})
        print("| what | comparisons | identical | equivalent | different | cannot tell | apart | seconds each |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        _all(endpoint, image, folder, arguments)


def _all(endpoint: Endpoint, image: str, folder: Path, arguments: argparse.Namespace) -> None:
    plans = [TextPlan(seed, arguments.depth) for seed in range(max(arguments.draws, arguments.itself))]
    rated: dict[str, list[tuple[ForcedPrompts, RatedImage]]] = {}
    for base in (MOE, DENSE):
        with _served(endpoint, image, folder, Variant(base, base)) as server:
            rated[base] = [_rate(server, plan) for plan in plans[: arguments.draws]]
            if base == DENSE and arguments.itself:
                began = time.monotonic()
                found = []
                for plan in plans[: arguments.itself]:
                    given, first = _rate(server, plan)
                    found.append(image_likeness.compare_images(given, first, _rate(server, plan, given)[1]))
                _print("the model beside itself", found, began)
    for variant in (*HARMLESS, *FAULTS):
        began = time.monotonic()
        with _served(endpoint, image, folder, variant) as server:
            own = rated[MOE if variant.model.startswith("moe") else DENSE]
            found = [
                image_likeness.compare_images(given, first, _rate(server, plan, given)[1])
                for plan, (given, first) in zip(plans, own, strict=False)
            ]
        _print(variant.title if variant.is_fault else f"harmless: {variant.title}", found, began)


def _rate(server: ServedModel, plan: TextPlan, given: ForcedPrompts | None = None) -> tuple[ForcedPrompts, RatedImage]:
    own, rated = text_rating.rate_image(server, plan, "the model", ignore, given)
    return own, rated


def _print(title: str, found: Sequence[ImageLikeness], began: float) -> None:
    verdicts = [each.verdict for each in found]
    counts = [verdicts.count(word) for word in ("identical", "equivalent", "different", "cannot tell")]
    apart = max(cell.compared.apart for each in found for cell in each.totals)
    seconds = (time.monotonic() - began) / len(found)
    cells = (title, len(found), *counts, f"{apart:.5f}", f"{seconds:.1f}")
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


@contextmanager
def _served(endpoint: Endpoint, image: str, folder: Path, variant: Variant) -> Iterator[ServedModel]:
    port = free_port()
    serve = ["vllm", "serve", f"/models/{variant.model}", "--port", str(port), "--enforce-eager"]
    serve += ["--max-model-len", "8192", "--max-num-seqs", "4", *variant.arguments]
    change = ""
    if variant.shifted:
        turned = _TURNED.format(layers=variant.shifted)
        change = (
            "from pathlib import Path; import vllm; "
            "p = Path(vllm.__file__).parent / 'model_executor/models/qwen3.py'; t = p.read_text(); "
            f"assert {_TURN!r} in t; p.write_text(t.replace({_TURN!r}, {turned!r}))"
        )
    argv = ["sh", "-c", 'python3 -c "$1" && shift && exec "$@"', "sh", change or "pass", *serve]
    options = {
        "network_mode": "host",
        "shm_size": "1g",
        "environment": {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
        "labels": {"builder.test": "1"},
    }
    with cpu_image.started(endpoint, image, argv, {folder: "/models"}, **options) as container:
        until = time.monotonic() + 600
        while True:
            try:
                model = served_model.ask_served_model(f"http://127.0.0.1:{port}/v1")
                break
            except MeasuringError:
                container.reload()
                if container.status == "exited" or time.monotonic() > until:
                    raise SystemExit(container.logs(tail=40).decode()) from None
                time.sleep(1)
        yield model


if __name__ == "__main__":
    main()

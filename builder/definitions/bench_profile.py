"""The profiles of `builder bench`: those built in, and a project's own under ``bench:`` in builder.yaml."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class BenchProfile:
    """A protocol of measuring throughput. Each prompt of ``pp`` tokens after a context of ``depth`` tokens is answered
    with ``tg`` tokens, by ``concurrency`` requests at a time, ``runs`` times after one to warm up.

    ``exact`` makes every answer as long as ``tg`` says. ``thinking`` leaves a model's thinking on; ``coherence`` first
    asks for the capital of France. It takes ``minutes`` at most."""

    name: str
    pp: tuple[int, ...] = (2048,)
    tg: tuple[int, ...] = (128,)
    depth: tuple[int, ...] = (0,)
    concurrency: tuple[int, ...] = (1,)
    runs: int = 3
    exact: bool = True
    thinking: bool = False
    coherence: bool = True
    minutes: int = 30

    def within(self, context: int) -> BenchProfile:
        """The profile without the depths for which a context of so many tokens has no room."""
        # The chat template and the adjustment of the prompt's length take some tokens more.
        longest = max(self.pp) + max(self.tg) + 64
        return replace(self, depth=tuple(depth for depth in self.depth if depth + longest <= context))


BUILT_IN = (
    BenchProfile("quick", minutes=10),
    # The community's table. Its depths are those of https://github.com/eugr/llama-benchy; spark-arena-v1 of
    # https://github.com/spark-arena/recipe-registry has its prompt, answer and concurrency, and goes on to depth 100000
    # and concurrency 10, with prefix caching.
    BenchProfile(
        "community",
        depth=(0, 4096, 8192, 16384, 32768),
        concurrency=(1, 2, 5),
        exact=False,
        minutes=240,
    ),
    BenchProfile(
        "deep",
        pp=(128, 4096),
        tg=(256, 1024),
        depth=(0, 32768, 131072),
        concurrency=(1, 4, 8),
        exact=False,
        minutes=480,
    ),
)


def of_project(data: Mapping[str, Any] | None) -> tuple[BenchProfile, ...]:
    """The profiles built in and those in ``bench:`` of builder.yaml, which may replace them."""
    own = {name: _profile(name, settings) for name, settings in (data or {}).items()}
    return tuple(({profile.name: profile for profile in BUILT_IN} | own).values())


def _profile(name: str, settings: Mapping[str, Any]) -> BenchProfile:
    lists = {"pp", "tg", "depth", "concurrency"}
    values: dict[str, Any] = {
        key: tuple(value if isinstance(value, list) else [value]) if key in lists else value
        for key, value in settings.items()
    }
    return BenchProfile(name, **values)

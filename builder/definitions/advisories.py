"""Advisories are known problems as data. Each has a condition over facts, which decides whether it applies.

A condition over an unknown fact is unknown, and such an advisory does not apply: nothing is guessed.
``docs/how-to/advisories.md`` shows how to write one.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder.base import records, yaml_file
from builder.base.errors import Problem, UsageError, require_no_problems
from builder.base.values import dataclass, field
from builder.base.words import did_you_mean, is_day
from builder.definitions.fields import checked

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Iterator

    from builder.base.project import Project


# The facts by name. A missing fact is unknown; None means known to be absent. A mapping is complete: a key that it
# lacks is absent.

FactValue: TypeAlias = "str | int | float | bool | tuple[str, ...] | None"
Facts: TypeAlias = "Mapping[str, FactValue | Mapping[str, FactValue]]"

VERSIONS = {
    "vllm": "vLLM",
    "torch": "PyTorch",
    "transformers": "transformers",
    "flashinfer": "FlashInfer",
    "nccl": "NCCL, from the image's Python package",
    "instanttensor": "InstantTensor",
    "driver": "NVIDIA's driver",
    "nodes": "how many machines serve together",
    "memory": "the machine's memory, in GiB",
}
TEXTS = {
    "chip": "the GPU, as the kernel names it (NVIDIA GB10), or the GPU that the image is built for",
    "kernel": "the kernel's release, as `uname -r` prints it; compared by its numbers: 7.0.0-1019-nvidia is 7.0.0.1019",
    "kernel.parameters": "the kernel's command line",
    "driver.modules": "the kind of the driver's modules: open, proprietary",
    "model": "the model's id on the Hub, or its folder",
    "quantization": "`--quantization`, and the format in the model's name: nvfp4, mxfp4, fp8, awq, gptq, autoround",
    "definition": "the image's definition and the definitions that it is built on",
    "container": "the image that the recipe names",
    "base": "the base image of the definition",
    "entrypoint": "the program that the server's container starts with, before the command",
    "mod": "the mods in the image",
}
CLOSED = {
    "package": "the version of a Python package in the image: `package.ray`",
    "option": "the value of an option of `vllm serve`: `option.kv-cache-dtype`; for a JSON value also "
    "`option.speculative-config.method`",
    "firmware": "the version of a part's firmware, as fwupd or the kernel names the part: `firmware.BIOS`",
    "env": "a variable of the server's environment: `env.VLLM_USE_V1`",
}


# The files

SHIPPED = Path(__file__).parent / "known_advisories"
UPDATED = "advisories.json"
"""The file with the updated advisories in a project's state folder."""
HEAD = {"format": 1}
SCHEMA = "advisory"
_WORDS = ("any", "all", "not")
_COMPARISON = re.compile(r"\s*(==|!=|<=|>=|<|>|~=)\s*([0-9][\w.+!*]*)\s*")


@dataclass(frozen=True)
class Advisory:
    """An advisory: ``what`` happens and what to ``do``, a line each; ``affects`` are ranges of versions by fact, and
    ``when`` is the rest of the condition. ``checked`` is the day when its ``sources`` were read. ``origin`` is
    empty for an advisory that came with this program."""

    id: str
    what: str
    do: str
    sources: tuple[str, ...]
    checked: str
    affects: Mapping[str, str] = field(default_factory=dict)
    when: Mapping[str, Any] = field(default_factory=dict)
    details: str = ""
    certain: bool = False
    origin: str = ""


@dataclass(frozen=True)
class AdvisorySet:
    """Advisories from one ``source``: a repository at a ``commit``, or a file. ``taken`` is the time of the update
    (RFC 3339 in UTC); ``signed`` is the principal whose signature was verified, if any. All are empty for the shipped
    advisories."""

    advisories: tuple[Advisory, ...]
    source: str = ""
    commit: str = ""
    taken: str = ""
    signed: str = ""


def parse_advisories(text: str, file: str, origin: str = "") -> tuple[Advisory, ...]:
    """The advisories in the text of a file. Raises FileProblemsError with every problem and its location."""
    data = checked(text, file, SCHEMA)
    require_no_problems(
        Problem(yaml_file.location_of(path, text, file), message)
        for name, entry in data.items()
        for path, message in _faults(name, entry)
    )
    return tuple(_advisory(name, entry, origin) for name, entry in data.items())


def shipped_files() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(SHIPPED.glob("*.yaml"))}


@cache
def shipped_advisories() -> tuple[Advisory, ...]:
    """The advisories in the shipped files. Only a test checks these files for problems."""
    files = (yaml_file.load(text, file) for file, text in shipped_files().items())
    return tuple(_advisory(name, entry, "") for data in files for name, entry in data.items())


def updated(project: Project) -> AdvisorySet | None:
    """The advisories of the last update in this project; None if there was none, or if its file is damaged."""
    try:
        return records.read_file(project.state / UPDATED, AdvisorySet, HEAD)
    except (OSError, records.RecordError):
        return None


def every_advisory(project: Project) -> tuple[Advisory, ...]:
    """All advisories, by id. If two have the same id, the one that was checked later is used."""
    newest = {each.id: each for each in shipped_advisories()}
    for each in update.advisories if (update := updated(project)) else ():
        if each.id not in newest or each.checked >= newest[each.id].checked:
            newest[each.id] = each
    return tuple(newest[name] for name in sorted(newest))


def _advisory(name: str, entry: Mapping[str, Any], origin: str) -> Advisory:
    return Advisory(id=name, **{**entry, "sources": tuple(entry["sources"])}, origin=origin)


def _faults(name: str, entry: Mapping[str, Any]) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    for fact, versions in entry.get("affects", {}).items():
        path = (name, "affects", fact)
        yield from ((path, message) for message in _fact_faults(fact))
        if _comparisons(versions) is None:
            yield path, f'"{versions}" is not a range of versions, such as ">=0.30,<0.34"'
    yield from _condition_faults((name, "when"), entry.get("when", {}))
    if not is_day(entry["checked"]):
        yield (name, "checked"), f"{entry['checked']} is not a date"
    if not entry.get("affects") and not entry.get("when"):
        yield (name,), "`affects` or `when` is required: otherwise the advisory would always apply"


def _condition_faults(
    path: yaml_file.YamlPath, condition: Mapping[str, Any]
) -> Iterator[tuple[yaml_file.YamlPath, str]]:
    for key, test in condition.items():
        if key == "not":
            yield from _condition_faults((*path, key), test)
        elif key in _WORDS:
            for index, each in enumerate(test):
                yield from _condition_faults((*path, key, index), each)
        else:
            yield from (((*path, key), message) for message in _fact_faults(key))
            if isinstance(test, str) and test.strip()[:1] in tuple("=!<>~") and _comparisons(test) is None:
                yield (*path, key), f'"{test}" is not a comparison, such as ">=2" or ">=0.30,<0.34"'


def _fact_faults(fact: str) -> Iterator[str]:
    group, dot, name = fact.partition(".")
    if fact in VERSIONS or fact in TEXTS or (dot and name and group in CLOSED):
        return
    names = [*VERSIONS, *TEXTS, *(f"{each}.NAME" for each in CLOSED)]
    listed = f"known: {', '.join(names)}"
    yield f"no fact is called `{fact}`; {did_you_mean(fact, names, code=True) or listed}"


# The evaluation

_Truth: TypeAlias = "bool | None"
_UNKNOWN = object()


def applies(facts: Facts, advisory: Advisory) -> _Truth:
    """True if the advisory applies, False if not, None if this depends on a missing fact."""
    return _every((_holds(facts, advisory.when), _holds(facts, advisory.affects)))


def _holds(facts: Facts, condition: Mapping[str, Any]) -> _Truth:
    return _every(_part_holds(facts, key, test) for key, test in condition.items())


def _part_holds(facts: Facts, key: str, test: Any) -> _Truth:
    if key == "any":
        return _negated(_every(_negated(_holds(facts, each)) for each in test))
    if key == "all":
        return _every(_holds(facts, each) for each in test)
    if key == "not":
        return _negated(_holds(facts, test))
    value = _value(facts, key)
    return None if value is _UNKNOWN else _fits(key, value, test)


def _every(parts: Iterable[_Truth]) -> _Truth:
    result: _Truth = True
    for part in parts:
        if part is False:
            return False
        result = None if part is None else result
    return result


def _negated(truth: _Truth) -> _Truth:
    return None if truth is None else not truth


def _value(facts: Facts, key: str) -> Any:
    group, dot, name = key.partition(".")
    if dot and group in CLOSED:
        names = facts.get(group)
        return names.get(name) if isinstance(names, Mapping) else _UNKNOWN
    return facts.get(key, _UNKNOWN)


def _fits(key: str, value: Any, test: Any) -> _Truth:
    if isinstance(test, list):
        return _negated(_every(_negated(_fits(key, value, each)) for each in test))
    text = _text(test)
    if text in {"present", "absent"}:
        return (value is None) == (text == "absent")
    if value is None:
        return False
    comparisons = _comparisons(text)
    if comparisons is not None:
        as_numbers = key in {"nodes", "memory"} or key.startswith(("option.", "env."))
        return _in_range(_text(value), text, as_numbers=as_numbers, is_loose=not key.startswith("package."))
    values = value if isinstance(value, tuple) else (value,)
    return any(fnmatch.fnmatchcase(_text(each).lower(), text.lower()) for each in values)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Ranges of versions.

# setuptools-scm writes this version for a clone without tags. It belongs to no release.
_NO_TAG = re.compile(r"0\.(?:0|1)(?:\.0)?\.?dev")
_NUMBERS = re.compile(r"\d+(?:[.-]\d+)*")


@cache
def _comparisons(text: str) -> tuple[tuple[str, str], ...] | None:
    parts = [_COMPARISON.fullmatch(part) for part in text.split(",")]
    return None if None in parts else tuple((part[1], part[2]) for part in parts if part)


def _in_range(text: str, wanted: str, *, as_numbers: bool, is_loose: bool) -> _Truth:
    """True if a version (or a number) is in a range; None for any other text."""
    if as_numbers:
        return _numbers_in_range(text, wanted)
    if _NO_TAG.match(text):
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(wanted).contains(Version(text), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        leading = _NUMBERS.match(text)
        if not is_loose or not leading or leading[0] == text:
            return None
        return _in_range(leading[0].replace("-", "."), wanted, as_numbers=False, is_loose=False)


def _numbers_in_range(text: str, wanted: str) -> _Truth:
    signs = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
    try:
        number = float(text)
        bounds = [(signs.get(sign, operator.eq), float(bound)) for sign, bound in _comparisons(wanted) or ()]
    except ValueError:
        return None
    return all(compare(number, bound) for compare, bound in bounds)


# SSH signatures of files, by `ssh-keygen -Y`: https://man.openbsd.org/ssh-keygen. With a namespace,
# the signature of one kind of file is not valid for another kind.

SUFFIX = ".sig"


def signer(signature: Path, content: bytes, namespace: str, allowed: Path) -> str:
    """The principal in the file ``allowed`` (ALLOWED SIGNERS in ssh-keygen(1)) whose key signed ``content``; empty if
    there is none. Raises UsageError if this machine cannot check signatures."""

    import subprocess

    def keygen(*words: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = ["ssh-keygen", "-Y", *words, "-s", str(signature), "-f", str(allowed)]
        return subprocess.run(argv, input=content, capture_output=True, check=False, timeout=60)

    try:
        for principal in keygen("find-principals").stdout.decode(errors="replace").splitlines():
            if not keygen("verify", "-q", "-n", namespace, "-I", principal, content=content).returncode:
                return principal
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"signatures cannot be checked: {error}", hint="install ssh-keygen (openssh-client)") from None
    return ""

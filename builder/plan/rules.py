"""The rules of a plan: the number of compilers, the reasons for a build, the order of mods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from builder.base import records, words
from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.values import dataclass
from builder.base.words import did_you_mean
from builder.definitions.fields import canonical
from builder.definitions.image import BUILD_JOBS, PACKAGES_BUILT_FROM, ImageDefinition
from builder.lock.model import GitPin, Pins
from builder.plan.plan_model import Step  # noqa: TC001 (the type of a record)

if TYPE_CHECKING:
    from builder.definitions.mod import Mod
    from builder.plan.plan_model import Plan


# The number of compilers that run at once while a source is built, from the memory and the processors of a machine.
# Each compiling step (``dockerfiles/_parts/wheels.j2``) determines the number on its machine, so the number is not an
# input of the image. The number here is a forecast for the user.

# FlashInfer's own build reserves 8 GB a job on arm64. One of its FP4 kernels (0.7.2.post1 for sm_121a, CUDA 13.0) took
# 7.0 GiB in one compiler. For vLLM, 8 GB a job was proposed upstream after builds ran out of memory
# (https://github.com/vllm-project/vllm/pull/12477).
GIB_PER_JOB = {"flashinfer": 8, "vllm": 8}
_GIB = 1 << 30
# The text of a step that compiles a source (`_parts/wheels.j2`). A template may also use the tree without compiling.
_MARK = "compiling {} with MAX_JOBS="


@dataclass(frozen=True)
class BuildMachine:
    """The building machine: its processors, and its free and total memory in bytes; None if unknown."""

    processors: int | None = None
    free: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class CompileJobs:
    """The number of jobs that compile a source, with the reason. ``jobs`` is None if the machine is unknown. With
    ``at_most``, the free memory of the machine is unknown."""

    source: str
    jobs: int | None
    reason: str
    at_most: bool = False

    def __str__(self) -> str:
        if self.jobs is None:
            return f"{self.source} is compiled by {self.reason}"
        most = "at most " if self.at_most else ""
        return f"{self.source} is compiled by {most}{words.counted(self.jobs, 'job')}: {self.reason}"


def of_plan(plan: Plan, kept_steps: int, machine: BuildMachine, requested: int | None) -> tuple[CompileJobs, ...]:
    """Returns the jobs of each source that may have to be compiled after the first ``kept_steps`` unchanged steps."""
    return tuple(
        _jobs(source, part.definition.args.get(BUILD_JOBS), machine, requested)
        for part in changed_parts(plan, kept_steps)
        for source in sorted(part.pins.sources)
        if _MARK.format(source).encode() in part.files["Dockerfile"].content
    )


def changed_parts(plan: Plan, kept_steps: int) -> tuple[Plan, ...]:
    """Returns the plans of the chain whose steps after ``kept_steps`` differ in more than their mods."""
    kept = {step.name for step in plan.steps[:kept_steps]}
    names = ("Dockerfile" if part is plan else f"{part.definition.name}: Dockerfile" for part in plan.chain)
    return tuple(part for part, name in zip(plan.chain, names, strict=True) if name not in kept)


def _jobs(source: str, most: object, machine: BuildMachine, requested: int | None) -> CompileJobs:
    if requested is not None:
        return CompileJobs(source, requested, "as requested")
    gib = GIB_PER_JOB[source]
    memory = machine.total if machine.free is None else machine.free
    if memory is None:
        return CompileJobs(source, None, f"as many jobs as fit into the build machine's memory, at {gib} GiB a job")
    in_all = "" if machine.free is not None else " in all"
    limits = [(max(memory // _GIB // gib, 1), f"{memory // _GIB} GiB{in_all} at {gib} GiB a job")]
    if machine.processors is not None:
        limits.append((machine.processors, words.counted(machine.processors, "processor")))
    if isinstance(most, int):
        limits.append((most, f"`{BUILD_JOBS}` of the definition"))
    jobs, reason = min(limits, key=lambda limit: limit[0])
    return CompileJobs(source, jobs, reason, at_most=machine.free is None)


# Explains why a build differs from an earlier one: the inputs that differ, in the order of the steps.


@dataclass(frozen=True)
class PlanFile:
    steps: tuple[Step, ...]


def read_steps(text: str) -> tuple[Step, ...]:
    """The steps in a build directory's plan.json. Raises RecordError if it is invalid."""
    return records.parse(text, PlanFile).steps


def common_steps(before: Sequence[Step], after: Sequence[Step]) -> int:
    """The number of leading steps that ``before`` and ``after`` share. Equal steps after a difference do not count."""
    pairs = zip(before, after, strict=False)
    return next((number for number, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after)))


def explain_changes(before: Sequence[Step], after: Sequence[Step]) -> tuple[str, ...]:
    """One line for each input that differs, in the order of the steps; empty if none does. The Dockerfile and the
    metadata result from the other inputs, so they are named only if nothing else differs."""
    old = {step.name: step.takes for step in before}
    new = {step.name: step.takes for step in after}
    derived = [name for name in new if _own_name(name) in _DERIVED]
    lines: list[str] = []
    for name in {**new, **old}:
        if _own_name(name) in _DERIVED:
            continue
        if name not in old:
            lines.append(f"{name}: new")
        elif name not in new:
            lines.append(f"{name}: removed")
        else:
            lines.extend(_differences(name, old[name], new[name]))
    order_old, order_new = ([s.name for s in steps if s.name in old and s.name in new] for steps in (before, after))
    if order_old != order_new:
        lines.append(f"order of the steps: {', '.join(order_new)}")
    return tuple(lines or (f"{name}: changed" for name in derived if old.get(name) != new[name]))


_DERIVED = ("Dockerfile", "build-metadata.yaml")


def _own_name(name: str) -> str:
    """A step's name without its definition: ``mod x`` for ``dflash: mod x``."""
    return name.rpartition(": ")[2]


def _differences(name: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    if _own_name(name).startswith("mod ") and old != new:
        return [f"{name}: changed"]
    lines: list[str] = []
    for key in {**new, **old}:
        before, after = old.get(key, ""), new.get(key, "")
        if before == after:
            continue
        if _own_name(name) in {"base packages", "python packages", "build packages"}:
            was, now = before.partition(" ")[0], after.partition(" ")[0]
            change = f"{was or 'not there'} → {now or 'removed'}" if was != now else f"{now}, but with different files"
            lines.append(f"{key}: {change}")
        else:
            short = (words.short_digest(text) or "nothing" for text in (before, after))
            lines.append(f"{name} {key}: {' → '.join(short)}")
    return lines


# The order in which the mods of a chain are baked, and their rules. Both follow from what the mods declare about each
# other and about the pinned versions.


@dataclass(frozen=True)
class ImageMods:
    """The mods of one image of a chain as listed, and its pinned versions by canonical name."""

    definition: str
    mods: tuple[Mod, ...]
    pinned: Mapping[str, str]


def pinned_versions(definition: ImageDefinition, pins: Pins) -> dict[str, str]:
    versions = {"python": definition.python.version} if definition.python else {}
    packages = (*(pins.base.packages if pins.base else ()), *(pins.python.packages if pins.python else ()))
    versions.update({canonical(package.name): package.version for package in packages})
    for name, pin in pins.sources.items():
        made = PACKAGES_BUILT_FROM.get(name, ()) if isinstance(pin, GitPin) else ()
        versions.update({canonical(package): pin.version for package in (name, *made)})
    return versions


def installed_versions(mods: Iterable[Mod], pinned: Mapping[str, str]) -> dict[str, str]:
    own = (package.partition("==") for mod in mods for package in mod.packages)
    return {**{canonical(name.partition("[")[0]): version for name, _, version in own}, **pinned}


def arrange_steps(levels: Sequence[ImageMods], existing: Collection[str]) -> tuple[tuple[Mod, ...], ...]:
    """The mods of each image in the order of baking: after the mods that they name in ``after``, otherwise as listed.
    ``levels`` are the images, parents first; ``existing`` are the names of all mods. Raises FileProblemsError with all
    problems: a cycle, a mod in ``after`` that is unknown or baked later, a conflict, a version outside the range."""
    wrong = [
        *_wrong_after(levels, existing),
        *_conflicts([mod for level in levels for mod in level.mods]),
        *(problem for number in range(len(levels)) for problem in _unmet(levels[: number + 1])),
    ]
    ordered = []
    for level in levels:
        mods, cycle = _ordered(level.mods)
        ordered.append(mods)
        if cycle:
            names = " after ".join(mod.name for mod in (*cycle, cycle[0]))
            wrong.append(Problem(_at_after(cycle[0], cycle[1 % len(cycle)].name), f"these mods form a cycle: {names}"))
    if wrong:
        raise FileProblemsError(tuple(wrong))
    return tuple(ordered)


def _ordered(mods: tuple[Mod, ...]) -> tuple[tuple[Mod, ...], tuple[Mod, ...]]:
    """The mods in order, and the mods of a cycle, if any: each comes after the next one."""
    left = {mod.name: mod for mod in mods}
    done: list[Mod] = []
    while left:
        ready = next((mod for mod in left.values() if left.keys().isdisjoint(mod.after)), None)
        if ready is None:
            seen: list[Mod] = []
            mod = next(iter(left.values()))
            while mod not in seen:
                seen.append(mod)
                mod = next(left[name] for name in mod.after if name in left)
            return mods, tuple(seen[seen.index(mod) :])
        done.append(left.pop(ready.name))
    return tuple(done), ()


def _at_after(mod: Mod, name: str) -> Location:
    return mod.location("after", mod.after.index(name))


def _wrong_after(levels: Sequence[ImageMods], existing: Collection[str]) -> Iterator[Problem]:
    from builder.definitions.mod import no_mod

    baked = {mod.name: number for number, level in enumerate(levels) for mod in level.mods}
    for number, level in enumerate(levels):
        for mod in level.mods:
            for name in mod.after:
                if name not in existing:
                    yield Problem(_at_after(mod, name), no_mod(name, existing))
                elif baked.get(name, 0) > number:
                    own, child = level.definition, levels[baked[name]].definition
                    message = f"{mod.name} is baked into {own}, but {name} only into {child}, which is built on {own}"
                    yield Problem(_at_after(mod, name), f"{message}: remove {name} from `after`")


def _conflicts(mods: Sequence[Mod]) -> Iterator[Problem]:
    names = {mod.name for mod in mods}
    reported: set[frozenset[str]] = set()
    for mod in mods:
        for index, name in enumerate(mod.conflicts):
            pair = frozenset((mod.name, name))
            if name in names and pair not in reported:
                reported.add(pair)
                message = f"{mod.name} and {name} cannot be in one image; remove one of them"
                yield Problem(mod.location("conflicts", index), message)


def _unmet(levels: Sequence[ImageMods]) -> Iterator[Problem]:
    own = levels[-1]
    pinned = installed_versions((mod for level in levels for mod in level.mods), own.pinned)
    for mod in own.mods:
        outside = excluded_versions(mod, pinned)
        for name, text in mod.requires.items():
            location = mod.location("requires", name)
            if canonical(name) not in pinned:
                also = did_you_mean(canonical(name), pinned)
                message = f"{mod.name} requires {name} {text}, but {own.definition} pins no {name}"
                yield Problem(location, f"{message}; {also}" if also else message)
            elif name in outside:
                yield Problem(location, f"{mod.name} requires {name} {text}, but {outside[name]} is pinned")


def excluded_versions(mod: Mod, pinned: Mapping[str, str]) -> dict[str, str]:
    if not mod.requires:
        return {}
    from packaging.specifiers import SpecifierSet

    versions = {name: pinned[canonical(name)] for name in mod.requires if canonical(name) in pinned}
    return {
        name: version
        for name, version in versions.items()
        # Development versions are included: a pinned commit has a version such as 0.20.1.dev12+gabc.
        if not SpecifierSet(mod.requires[name]).contains(version, prereleases=True)
    }

"""The invariants that hold wherever a command was ended, and what became of it there."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.crash.bench import State
from tests.crash.places import Place
from tests.crash.supervision import Ended

BUG = 3
Record = Literal["old", "new", "between"]


@dataclass(frozen=True)
class Outcome:
    """What became of a command at one place: how it was ended there, its exit code, the record after it, and every
    invariant that did not hold."""

    place: Place
    fate: str
    code: int
    record: Record
    broken: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place}, {self.fate}: exit code {self.code}, {self.record}\n    " + "\n    ".join(self.broken)


def judged(
    place: Place,
    fate: str,
    ended: Ended,
    states: tuple[State, State, State, State],
    after: Ended,
    codes: tuple[int, ...],
) -> Outcome:
    """The outcome at a place. ``states`` are those before the command, after a whole run of it, right after it was
    ended here, and after the next command, which ended as ``after`` says and may end with one of ``codes``."""
    old, new, now, then = states
    broken = [*_ended_well(fate, ended, now, new), *_old_or_new(old, new, now), *_after_next(new, then)]
    if after.code not in codes or "Traceback" in after.stderr:
        broken.append(f"the next command ends with {after.code}: {_last(after.stderr)}")
    return Outcome(place, fate, ended.code, _record(old, new, now), tuple(broken))


def fate_of(error: int) -> str:
    """The name of an error of the system."""
    return errno.errorcode[error]


def _record(old: State, new: State, now: State) -> Record:
    """The project's files, images.lock among them: as they were, as they are to be, or a part of it."""
    if (now.lock, now.files) == (old.lock, old.files):
        return "old"
    return "new" if (now.lock, now.files) == (new.lock, new.files) else "between"


def _ended_well(fate: str, ended: Ended, now: State, new: State) -> Iterator[str]:
    if fate.startswith("killed"):
        return
    if ended.code == BUG or "bug in builder" in ended.stderr:
        yield f"it is called a bug: {_last(ended.stderr)}"
    elif "Traceback" in ended.stderr:
        yield f"a traceback: {_last(ended.stderr)}"
    elif ended.code < 0:
        yield f"it ended by signal {-ended.code}"
    elif ended.code == 0 and now.lock != new.lock:
        yield "it ended well, and images.lock is not what it is to be"
    elif ended.code and not (ended.stdout + ended.stderr).strip():
        yield "it failed without a word"


def _old_or_new(old: State, new: State, now: State) -> Iterator[str]:
    if now.damage and now.damage != old.damage:
        yield f"images.lock: {now.damage}"
    else:
        yield from _mixed("images.lock, ", old.lock, new.lock, now.lock)
    visible = {name: content for name, content in now.files.items() if not name.rpartition("/")[2].startswith(".")}
    yield from _mixed("", old.files, new.files, visible)
    for name, fingerprint in now.tags.items():
        repository, _, tag = name.rpartition(":")
        recorded = now.lock.get(f"/images/{repository}/{tag}/content")
        if recorded and recorded != fingerprint:
            yield f"{name} is another image than images.lock records"


def _mixed(prefix: str, old: Mapping[str, str], new: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*old, *new, *now}):
        if now.get(name) not in (old.get(name), new.get(name)):
            yield f"{prefix}{name} is neither old nor new: {str(now.get(name))[:200]!r}"


def _after_next(new: State, then: State) -> Iterator[str]:
    for name in sorted({*new.lock, *then.lock}):
        if new.lock.get(name) != then.lock.get(name):
            yield f"after the next command: images.lock, {name} is {then.lock.get(name)}, not {new.lock.get(name)}"
    for name in sorted({*new.files, *then.files}):
        if new.files.get(name) != then.files.get(name):
            yield f"after the next command: {name} is {str(then.files.get(name))[:200]!r}"
    for name in sorted(then.others - new.others):
        yield f"left over after the next command: {name}"
    for name in sorted({*new.tags, *then.tags}):
        if new.tags.get(name) != then.tags.get(name):
            yield f"after the next command: the tag {name} " + ("is left" if name in then.tags else "is missing")
    for entry in sorted(set(then.engine) - set(new.engine)):
        yield f"left over in the engine after the next command: {entry}"


def _last(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])

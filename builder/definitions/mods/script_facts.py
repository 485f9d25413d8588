"""Facts about the script of a mod, read from its text: patches that it applies itself, downloads, and things that
belong to run time.

A script can do anything, and nothing here runs it: what is read is certain only where it is said to be so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.definitions.mods.mod import Mod

PATCHES = (".patch", ".diff")
_SCRIPTS = (".sh", ".bash", ".py")
# Of a script that is looked through; longer lines hold data, and take the patterns below too long.
_LARGEST = 1024 * 1024
_LONGEST_LINE = 1000

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(?P<end>\w+)\1")
_APPLIES = re.compile(
    r"(?:^|[;&|(`!]|\b(?:if|then|do|else)\b)[ \t]*(?:sudo[ \t]+)?"
    r"(?:patch[ \t]+[^=\s]|git[ \t]+(?:-\S+[ \t]+\S+[ \t]+)*(?:apply|am)\b)",
    re.MULTILINE,
)
_DOWNLOADS = {
    "curl": re.compile(r"\bcurl[ \t]+\S"),
    "wget": re.compile(r"\bwget[ \t]+\S"),
    "git clone": re.compile(r"\bgit[ \t]+clone\b"),
    "pip": re.compile(r"\bpip3?[ \t]+(?:install|download)\b"),
    "hf": re.compile(r"\b(?:hf|huggingface-cli)[ \t]+download\b"),
    "apt-get": re.compile(r"\bapt(?:-get)?[ \t]+(?:-\S+[ \t]+)*(?:install|update)\b"),
}
_DROP_CACHES = "/proc/sys/vm/drop_caches"
_WRITTEN_SETTING = re.compile(r"(?:>[ \t]*|\btee[ \t]+(?:-a[ \t]+)?)[\"']?(?P<path>/(?:proc/sys|sys)/[\w./-]+)")
_SYSCTL = re.compile(r"(?:^|[\s;&|(])sysctl[ \t]+(?:-\S+[ \t]+)*[\"']?[\w.]+=", re.MULTILINE)
# A lone `&` at the end of a command; `&&`, `>&2`, `&>file` and the `&` of sed are others.
_BACKGROUND = re.compile(r"(?<![&>|<\\])&[ \t]*(?:$|\)|\w+=\$!|disown\b|echo\b)", re.MULTILINE)
_WAITS = re.compile(r"(?:^|[\s;])wait(?:$|[\s;])", re.MULTILINE)
_SERVICE = re.compile(
    r"(?:^|[\s;&|(])(?:systemctl[ \t]+(?:\S+[ \t]+)*(?:start|enable)|service[ \t]+\S+[ \t]+start|crontab)\b",
    re.MULTILINE,
)
_GPU_SETTING = re.compile(
    r"\bnvidia-smi[ \t]+(?:\S+[ \t]+)*(?:-pm|-pl|-lgc|-lmc|--persistence-mode|--power-limit|--lock-)"
)

_PRINTED = r"\"(?:[^\"`$]|\$\w)*\"|'[^']*'|(?:[^\s|<>;&`$\"']|\$\w)+"
_PRINTS = re.compile(rf"(?:set\s[^|;&]*|(?:echo|printf)(?:\s+(?:{_PRINTED}))*|exit\b.*|true|:|cd\s[^|;&]*)?")
_COPIES = re.compile(r"(?:cp|mkdir|install)\s[^|;&`]*")
# Programs with which a script could change files.
_CHANGES = re.compile(
    r"\b(?:cp|mv|ln|rm|mkdir|touch|install|sed|awk|perl|patch|git|python3?|pip3?|uv|tar|unzip|curl|wget|hf|apt|apt-get|dpkg"
    r"|chmod|chown|find|rsync|dd|make|cmake|ninja|source|exec|eval|tee\s+(?!/proc|/dev))\b|\./|\.sh\b"
)

_ON_THE_HOST = "set it on each machine that serves, as root"
_DROP_LOOP = "sudo sh -c 'while sleep 60; do sync; echo 3 > /proc/sys/vm/drop_caches; done'"
_BESIDE = (
    "start it with the server, in the recipe's command (`helper & exec vllm serve …`), or on the host with systemd"
)


@dataclass(frozen=True)
class RunTimeUse:
    """Something in a script that an image cannot keep: ``does`` says what (`starts a process …`), ``instead`` where it
    belongs."""

    does: str
    instead: str


@dataclass(frozen=True)
class ScriptFacts:
    """Facts about the script ``name``. ``applies_patches`` if it runs patch(1) or ``git apply``; ``patches`` are the
    patches beside it that it names, in its order, ``unnamed`` the others; ``downloads`` are the programs that fetch
    something. ``only_copies`` if all that it does is to put files in their place, ``changes_nothing`` if an image with
    it would be the same as one without."""

    name: str
    only_copies: bool
    changes_nothing: bool
    applies_patches: bool
    patches: tuple[str, ...]
    unnamed: tuple[str, ...]
    downloads: tuple[str, ...]
    run_time: tuple[RunTimeUse, ...]

    @property
    def instead(self) -> str:
        """The advice on what to use in place of a mod that belongs to run time; empty for any other."""
        if not self.run_time:
            return ""
        does = " and ".join(use.does for use in self.run_time)
        advice = "; ".join(dict.fromkeys(use.instead for use in self.run_time if use.instead))
        return f"{self.name} {does}, which no image keeps. In its place: {advice}"


def of(mod: Mod) -> ScriptFacts | None:
    """Reads the facts about the script of ``mod``; None where it has none."""
    if mod.run is None:
        return None
    texts = {file.path: file.content.decode("utf-8", "replace") for file in mod.files if _is_script(mod, file.path)}
    commands = _without_comments(texts.get(mod.run, ""))
    shell = _without_heredocs(commands)
    every = "\n".join([commands, *(_without_comments(text) for path, text in texts.items() if path != mod.run)])
    beside = [file.path for file in mod.files if file.path.endswith(PATCHES)]
    places = {path: place for path in beside if (place := _place_of(path, every)) is not None}
    declared = {patch.file for patch in mod.patches}
    return ScriptFacts(
        name=mod.run,
        only_copies=_consists_of(commands, _PRINTS, _COPIES) and not _consists_of(commands, _PRINTS),
        changes_nothing=_changes_nothing(commands),
        applies_patches=bool(_APPLIES.search(every)),
        patches=tuple(path for path in sorted(places, key=lambda path: (places[path], path)) if path not in declared),
        unnamed=tuple(path for path in beside if path not in places and path not in declared),
        downloads=tuple(program for program, pattern in _DOWNLOADS.items() if pattern.search(every)),
        run_time=tuple(_run_time(commands, shell)),
    )


def _is_script(mod: Mod, path: str) -> bool:
    file = next(file for file in mod.files if file.path == path)
    return (path == mod.run or path.endswith(_SCRIPTS)) and len(file.content) <= _LARGEST


def _place_of(path: str, text: str) -> int | None:
    """The place in ``text`` where the patch ``path`` is named, by its name or by a pattern; None where it is not."""
    name = path.rpartition("/")[2]
    places = [text.find(name), text.find(f"*{name[name.rindex('.') :]}")]
    return min((place for place in places if place >= 0), default=None)


def _run_time(commands: str, shell: str) -> Iterator[RunTimeUse]:
    if _consists_of(commands, _PRINTS) and _prints(commands):
        yield RunTimeUse("only prints text", "leave the mod out, as it changes nothing")
    settings = dict.fromkeys(match["path"] for match in _WRITTEN_SETTING.finditer(commands))
    if _DROP_CACHES in settings:
        yield RunTimeUse(f"writes {_DROP_CACHES}", f"on the machine that serves, while a model loads: `{_DROP_LOOP}`")
    others = [path for path in settings if path != _DROP_CACHES and path.startswith(("/proc/sys/", "/sys/"))]
    if others or _SYSCTL.search(commands):
        named = ", ".join(others) or "settings of the kernel with sysctl"
        yield RunTimeUse(f"writes {named}", f"{_ON_THE_HOST}: a file in /etc/sysctl.d, or systemd-tmpfiles")
    if _GPU_SETTING.search(commands):
        yield RunTimeUse("sets the GPU with nvidia-smi", _ON_THE_HOST)
    starts = "nohup " in shell or "setsid " in shell or _BACKGROUND.search(shell)
    if _SERVICE.search(shell):
        yield RunTimeUse("starts a service", _BESIDE)
    elif starts and not _WAITS.search(shell):
        # Dropping caches is such a loop itself, and needs nothing beside the server.
        yield RunTimeUse("starts a process that is to outlive it", "" if _DROP_CACHES in settings else _BESIDE)


def _changes_nothing(commands: str) -> bool:
    """True for a script that only prints, or drops caches and starts nothing that could change an image."""
    if _consists_of(commands, _PRINTS):
        return _prints(commands)
    return _DROP_CACHES in commands and not _CHANGES.search(commands)


def _prints(commands: str) -> bool:
    return "echo" in commands or "printf" in commands


def _consists_of(commands: str, *patterns: re.Pattern[str]) -> bool:
    return all(any(pattern.fullmatch(line.strip()) for pattern in patterns) for line in commands.splitlines())


def _without_comments(text: str) -> str:
    joined = text.replace("\\\n", " ")
    return "\n".join("" if line.lstrip().startswith("#") else line[:_LONGEST_LINE] for line in joined.splitlines())


def _without_heredocs(text: str) -> str:
    kept: list[str] = []
    end = ""
    for line in text.splitlines():
        if end:
            end = "" if line.strip() == end else end
            continue
        kept.append(line)
        opened = _HEREDOC.search(line)
        end = opened["end"] if opened else ""
    return "\n".join(kept)

"""The ``mods pin`` command: writes into mod.yaml the digests of what its addresses have today."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions.mods import digest_lines, mod_files, mod_reading
from builder.definitions.mods.mod import is_address
from builder.definitions.reading import checked, read_text
from builder.errors import NothingToDoError, UsageError
from builder.events import Message
from builder.sources import environment, web_file
from builder.storage import atomic_file
from builder.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.project import Project


@dataclass(frozen=True)
class PinnedAddress:
    """An address of a mod with the digest of what it has today, and that of mod.yaml ``before``, if there was one."""

    address: str
    sha256: str
    before: str


def run(project: Project, text: str, environ: Mapping[str, str], report: Report) -> tuple[PinnedAddress, ...]:
    """Fetches every file that the mod takes from an address, keeps it for the next build, and writes its digest into
    mod.yaml; nothing is written before all of them are here.

    Raises UsageError where there is no such mod, NothingToDoError where it takes nothing from an address, SourceError
    where one cannot be fetched, and FileProblemsError for an invalid mod.yaml.
    """
    name = mod_reading.name_of(text)
    path = project.mods / name / mod_files.DESCRIPTION
    if not path.is_file():
        existing = mod_reading.names(project)
        raise UsageError(f"there is no {project.relative(path)}", hint=did_you_mean(name, existing))
    file = project.relative(path)
    entries = checked(read_text(path, file, path.parent), file, "mod").get("files", ())
    yaml = path.read_bytes().decode("utf-8-sig")  # with the line ends that it has
    remote = {index: entry for index, entry in enumerate(entries) if is_address(entry["from"])}
    if not remote:
        raise NothingToDoError(f"mod {name} takes no file from an address")
    ca_file = environment.read(environ).ca_file
    pinned: list[PinnedAddress] = []
    for index, entry in remote.items():
        report(Message(f"fetching {entry['from']}"))
        content = web_file.download(entry["from"], mod_files.LARGEST_FILE, ca_file, lambda line: report(Message(line)))
        digest = hashlib.sha256(content).hexdigest()
        project.downloads.mkdir(parents=True, exist_ok=True)
        atomic_file.write(project.downloads / digest, content)
        pinned.append(PinnedAddress(entry["from"], digest, entry.get("sha256", "")))
        yaml = digest_lines.with_digest(yaml, file, index, digest)
    if any(each.sha256 != each.before for each in pinned):
        atomic_file.write_alone(path, yaml.encode())
    return tuple(pinned)

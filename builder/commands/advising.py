"""The advisories command: shows the known advisories, and updates them from a repository or a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, records, words, yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, SourceError, UsageError
from builder.base.redaction import redacted
from builder.base.values import dataclass
from builder.definitions import advisories, configuration
from builder.definitions.advisories import Advisory, AdvisorySet
from builder.definitions.fields import LARGEST_TEXT, decoded
from builder.moving import copies, shipped
from builder.sources import foreign_files, mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.sources.git import Notify

NAMESPACE = "builder-advisories"
_FOLDER = "builder/definitions/known_advisories"
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class KnownAdvisories:
    """All advisories, and the notes of silenced advisories by id. ``update`` is the project's last update. ``unknown``
    are silenced ids without an advisory."""

    advisories: tuple[Advisory, ...]
    silenced: Mapping[str, str]
    update: AdvisorySet | None

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(sorted(self.silenced.keys() - {each.id for each in self.advisories}))


def known_advisories(project: Project) -> KnownAdvisories:
    silenced = configuration.load_configuration(project).silenced
    return KnownAdvisories(advisories.every_advisory(project), silenced, advisories.updated(project))


def find_advisory(project: Project, name: str) -> Advisory:
    """The advisory with this id. Raises UsageError if there is none."""
    every = {each.id: each for each in advisories.every_advisory(project)}
    if name not in every:
        hint = words.did_you_mean(name, every, code=True) or "`builder advisories` lists them"
        raise UsageError(f"no advisory is called `{name}`", hint=hint)
    return every[name]


def shown_condition(advisory: Advisory) -> str:
    """The advisory's condition apart from versions, as YAML; empty if it has none."""
    return yaml_file.dump(dict(advisory.when)).strip() if advisory.when else ""


def update_advisories(project: Project, source: str | None, signers: Path | None, notify: Notify) -> AdvisorySet:
    """Updates the advisories from ``source``: a file, or the address of a folder or file in a git repository. The
    default is the source of the last update; without one, it is the repository of this program. With ``signers``, a
    file of allowed signers, each file requires a signature beside it.

    After an error, the advisories are unchanged. Raises FileProblemsError for faults in the files. Raises SourceError
    if a repository does not answer or has no advisories, UsageError for an unsigned file."""
    before = advisories.updated(project)
    source = source or (before.source if before else "")
    if not source:
        if not (origin := shipped.repository_of_releases()):
            hint = "name a file or a repository: `builder advisories update GIT-URL//FOLDER`"
            raise UsageError("this installation does not record its source repository", hint=hint)
        source = f"{origin}//{_FOLDER}"
    commit = ""
    if Path(source).is_file():
        source = str(Path(source).absolute())  # the next update may start in another folder
        contents = _of_file(Path(source), signers)
    else:
        address = copies.parse_address(source)
        upstream = copies.find_repository(project, address, notify)
        commit = upstream.commit
        repository = mirror.locate(project.mirrors, address.url, notify)
        files_there = foreign_files.read_foreign_files(repository, commit, address.path)
        contents = {file.path: file.content for file in files_there}
    texts = {path: content for path, content in contents.items() if path.endswith(_SUFFIX)}
    if not texts:
        raise SourceError(f"{redacted(source)} has no advisories", hint=f"the names of advisory files end in {_SUFFIX}")
    signed = _signer(contents, texts, signers) if signers else ""
    parsed = {path: advisories.parse_advisories(decoded(text, path), path, source) for path, text in texts.items()}
    _refuse_repeated(parsed)
    every = tuple(each for group in parsed.values() for each in group)
    update = AdvisorySet(every, redacted(source), commit, words.now(), signed)
    files.make_folder(project.state)
    files.write_atomically(project.state / advisories.UPDATED, records.text_of(update, advisories.HEAD).encode())
    return update


def _of_file(path: Path, signers: Path | None) -> dict[str, bytes]:
    """The content of a file; with ``signers``, also the content of the signature beside it."""
    signature = path.with_name(path.name + advisories.SUFFIX)
    contents = {path.name: files.read_plain_file(path, LARGEST_TEXT)}
    if signers and signature.is_file():
        contents[signature.name] = files.read_plain_file(signature, LARGEST_TEXT)
    return contents


def _signer(contents: Mapping[str, bytes], texts: Mapping[str, bytes], signers: Path) -> str:
    """The principals who signed ``texts``. Raises UsageError if a text has no signature by one of ``signers``."""
    signing = set()
    with tempfile.TemporaryDirectory() as folder:
        signature = Path(folder, "signature")
        for path, text in texts.items():
            signature.write_bytes(contents.get(path + advisories.SUFFIX, b""))
            if not (name := advisories.signer(signature, text, NAMESPACE, signers)):
                signing_command = f"`ssh-keygen -Y sign -n {NAMESPACE} -f KEY {path}`"
                hint = f"its author signs it with {signing_command}; {signers} must list that key"
                raise UsageError(f"{path} has no valid signature of an allowed signer. Nothing was updated", hint=hint)
            signing.add(name)
    return ", ".join(sorted(signing))


def _refuse_repeated(parsed: Mapping[str, tuple[Advisory, ...]]) -> None:
    places: dict[str, str] = {}
    problems = []
    for path, name in ((path, each.id) for path, group in parsed.items() for each in group):
        if name in places:
            problems.append(Problem(Location(path), f"the id `{name}` already occurs in {places[name]}: rename one"))
        places[name] = path
    if problems:
        raise FileProblemsError(tuple(problems))

"""The plan of one checkpoint: its sources looked up, their headers read, and the steps applied to them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.checkpoints import source_files, source_listing
from builder.checkpoints.planning import layout, steps
from builder.checkpoints.planning.header import HeaderError
from builder.checkpoints.planning.index import NAME as INDEX
from builder.checkpoints.record import RecordedFile, RecordedSource
from builder.definitions.checkpoint_steps import AddStep
from builder.errors import FileProblemsError, Problem
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.checkpoints.planning.layout import PlannedShard
    from builder.checkpoints.planning.planned_content import PlannedContent
    from builder.checkpoints.planning.tensor_table import SourceFile, SourceListing
    from builder.checkpoints.record import CheckpointRecords
    from builder.checkpoints.source_files import SourceContents
    from builder.definitions.checkpoint import CheckpointDefinition
    from builder.events import Report
    from builder.project import Project


@dataclass(frozen=True)
class CheckpointPlan:
    """All that will be done. ``inputs`` is the digest over everything that decides the bytes of the result."""

    definition: CheckpointDefinition
    sources: Mapping[str, SourceContents]
    listings: Mapping[str, SourceListing]
    content: PlannedContent
    shards: tuple[PlannedShard, ...]
    index: bytes | None
    inputs: str

    @property
    def used(self) -> frozenset[SourceFile]:
        """The files of the sources that something is taken from."""
        of_weights = (file for shard in self.shards for file in shard.sources)
        return frozenset((*of_weights, *self.content.files.values()))

    @property
    def missing(self) -> tuple[SourceFile, ...]:
        """The files that have to be fetched first."""
        return tuple(sorted(file for file in self.used if not self.sources[file.source].is_here(file.path)))

    def size_of(self, file: SourceFile) -> int:
        """The size of a file of a source, in bytes."""
        return self.sources[file.source].sizes[file.path]

    @property
    def fetched(self) -> int:
        """The bytes that have to be fetched."""
        return sum(map(self.size_of, self.missing))

    @property
    def read(self) -> int:
        """The bytes that are read of sources."""
        return sum(shard.read for shard in self.shards) + sum(map(self.size_of, self.content.files.values()))

    @property
    def size(self) -> int:
        """The bytes of the result."""
        others = sum(map(self.size_of, self.content.files.values())) + len(self.index or b"")
        return sum(shard.size for shard in self.shards) + others


def make(
    project: Project,
    environ: Mapping[str, str],
    definition: CheckpointDefinition,
    records: CheckpointRecords,
    report: Report,
    *,
    update: bool = False,
) -> CheckpointPlan:
    """Plans a checkpoint: reads the headers of its sources, of the Hub's by ranges, and nothing else.

    A source of the Hub is taken at the commit that is recorded, as long as the definition asks for the same, unless
    ``update``. Raises SourceError for a source that cannot be read or is damaged, FileProblemsError with the place of a
    step that cannot be done.
    """
    current = records.find(definition.name, records.current(definition.name) or "")
    pinned = {
        name: source.commit
        for name, source in (current.sources if current and not update else {}).items()
        if name in definition.sources and source.requested == str(definition.sources[name])
    }
    sources, listings = {}, {}
    for name, source in definition.sources.items():
        report(Message(f"reading the headers of {source}"))
        sources[name] = source_files.look_up(project, environ, name, source, pinned.get(name))
        added = [step.file for step in definition.steps if isinstance(step, AddStep) and step.source == name]
        listings[name] = source_listing.read(sources[name], added)
    try:
        content = steps.apply(definition.steps, listings)
    except steps.StepError as error:
        raise FileProblemsError((Problem(definition.location("steps", error.number), error.message),)) from None
    try:
        shards = layout.shards(content, definition.shard_size)
        index = layout.index_of(shards, content)
    except HeaderError as error:
        raise FileProblemsError((Problem(definition.location("output", "shard_size"), str(error)),)) from None
    _require_files(definition, content, shards)
    files = {*content.files.values(), *(file for shard in shards for file in shard.sources)}
    identities = {file: sources[file.source].identity(file.path) for file in files}
    inputs = layout.digest(shards, content, identities, _card_inputs(definition))
    return CheckpointPlan(definition, sources, listings, content, shards, index, inputs)


def steps_digest(definition: CheckpointDefinition) -> str:
    """The digest over the steps of a definition."""
    content = [[type(step).__name__, vars(step)] for step in definition.steps]
    text = json.dumps(content, sort_keys=True, default=vars)
    return hashlib.sha256(text.encode()).hexdigest()


def recorded_sources(plan: CheckpointPlan) -> dict[str, RecordedSource]:
    """The sources of a plan, with the files that it uses."""
    recorded = {}
    for name, source in plan.sources.items():
        headers = plan.listings[name].headers
        files = {
            file.path: RecordedFile(
                source.sizes[file.path],
                source.digest(file.path),
                f"sha256:{headers[file.path].digest}" if file.path in headers else None,
            )
            for file in sorted(plan.used)
            if file.source == name
        }
        recorded[name] = RecordedSource(source.requested, source.snapshot.commit if source.snapshot else None, files)
    return recorded


def _card_inputs(definition: CheckpointDefinition) -> str:
    parts = [definition.name, definition.description, definition.model, definition.license, list(definition.mods)]
    return json.dumps([*parts, steps_digest(definition)])


def _require_files(definition: CheckpointDefinition, content: PlannedContent, shards: tuple[PlannedShard, ...]) -> None:
    """Raises FileProblemsError for a file that `verify` names and that the result does not have."""
    there = {*content.files, *(shard.name for shard in shards), INDEX, layout.README}
    if missing := sorted(content.digests.keys() - there):
        message = f"the result has no file {', '.join(missing)}; it has {', '.join(sorted(there))}"
        raise FileProblemsError((Problem(definition.location("steps"), message),))

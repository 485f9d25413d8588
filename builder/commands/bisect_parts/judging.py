"""The verdict on a candidate's image: by a script, a probe, or the proof of its templates and parsers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bisecting.trials import Trial
from builder.building import work_folder
from builder.commands.bisect_parts import serving, words
from builder.engine import images
from builder.errors import (
    ConflictError,
    FileProblemsError,
    ImageContentsError,
    MeasuringError,
    ServeFailedError,
    UsageError,
)
from builder.evidence.record import Subject
from builder.lock import reading
from builder.measuring import bounded_process, measured_server, probing
from builder.proving import prove, reference
from builder.proving.judging import Reference
from builder.proving.prove import ProvedPairing
from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.bisecting.candidate import BisectCandidate
    from builder.bisecting.search import TryCandidate
    from builder.bisecting.session import Bisection, Judge
    from builder.definitions.recipes.recipe import Recipe
    from builder.serving.running import RunningServer
    from builder.workspace import Workspace

# `git bisect run`: https://git-scm.com/docs/git-bisect
_SKIP, _LAST = 125, 127
_LARGEST = 64 << 20
_SCRIPT_SECONDS = 6 * 3600.0


def require_script(judge: Judge) -> None:
    """Raises UsageError for a script that cannot be run."""
    if judge.kind != "script":
        return
    if not Path(judge.name).is_file():
        raise UsageError(f"there is no script {judge.name}", hint="--run takes a program: 0 is good, 125 skip, 1 bad")
    if not os.access(judge.name, os.X_OK):
        raise UsageError(
            f"{judge.name} cannot be run as a program",
            hint=f"`chmod +x {judge.name}`, and begin it with a line such as `#!/bin/sh`",
        )


def trials(
    workspace: Workspace, bisection: Bisection, question: TryCandidate, tag: str, recipe_text: str
) -> Iterator[Trial]:
    """Yields each trial of a candidate, as many as are asked for, each when it is over. A server that does not start,
    or cannot be looked at, is a reason to go around it; for one that does not even in the end that fails, see
    `Bisection.unstartable`."""
    judge, tried = bisection.judge, question.candidate
    try:
        recipe = serving.recipe_of(workspace, bisection, recipe_text) if bisection.recipe else None
        if judge.kind == "prove" and recipe:
            yield _proved(workspace, bisection, tried, recipe, tag)
            return
        with serving.served(workspace, bisection, recipe, tag) if recipe and judge.serves else nullcontext() as server:
            done = 0
            while done < question.times:
                trial = _judged(workspace, judge, tried, tag, server)
                yield trial
                done += trial.tries
                if trial.skipped:
                    return
    except ServeFailedError as error:
        reason = f"does not start: {error.message.splitlines()[0]}"
        if bisection.unstartable or _is_failing_end(bisection, tried):
            yield Trial(tried, failed=question.times, note=reason)
        else:
            yield Trial(tried, skipped=reason)
    # A mixture of two recipes may be none.
    except (MeasuringError, FileProblemsError, ImageContentsError, UsageError) as error:
        yield Trial(tried, skipped=error.message.splitlines()[0])


def _is_failing_end(bisection: Bisection, tried: BisectCandidate) -> bool:
    return tried.number == bisection.numbers[0 if bisection.find_fix else -1]


def is_unstartable(bisection: Bisection, trial: Trial) -> bool:
    """True where the end that fails does not even start: then that is what is looked for."""
    return _is_failing_end(bisection, trial.candidate) and trial.note.startswith("does not start")


def _judged(
    workspace: Workspace, judge: Judge, tried: BisectCandidate, tag: str, server: RunningServer | None
) -> Trial:
    if judge.kind == "probe" and server:
        measured = measured_server.of(server)
        outcome = probing.probe(workspace.project, measured.model, judge.name, workspace.environment, workspace.report)
        note = next((finding.text.splitlines()[0] for finding in outcome.findings if finding.text), "")
        if outcome.verdict == "unclear":
            return Trial(tried, skipped=f"the probe came to no verdict: {note}")
        runs, failed = outcome.counts.get("runs", 0), outcome.counts.get("failed", 0)
        if not runs:
            return Trial(tried, int(outcome.verdict != "fail"), int(outcome.verdict == "fail"), note=note)
        return Trial(tried, runs - failed, failed, note=note)
    variables = {"BUILDER_IMAGE": tag, "BUILDER_CANDIDATE": words.of_candidate(tried)}
    if server:
        model = measured_server.of(server).model
        variables |= {"BUILDER_ADDRESS": model.address, "BUILDER_MODEL": model.name}
    return _by_script(workspace, Path(judge.name), tried, variables)


def _by_script(workspace: Workspace, script: Path, tried: BisectCandidate, variables: Mapping[str, str]) -> Trial:
    """Runs the user's script. Raises ConflictError where it says to stop, as `git bisect run` does for 128 and more."""
    environ = {**workspace.environment, **variables}
    ended = bounded_process.run([str(script.absolute())], folder=Path.cwd(), environ=environ, seconds=_SCRIPT_SECONDS)
    note = ended.last_lines.splitlines()[-1] if ended.last_lines else ""
    if ended.cause == "time":
        return Trial(tried, skipped=f"{script.name} had not ended after 6 hours")
    if ended.exit_code == _SKIP:
        return Trial(tried, skipped=note or f"{script.name} ended with {_SKIP}")
    if ended.cause == "itself" and not 0 <= ended.exit_code <= _LAST:
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with {ended.exit_code}"
        raise ConflictError(
            f"{script.name} ended {how}, which says to stop: {note}".rstrip(": "),
            hint="give the same command again to go on where it was; 0 is good, 125 skips, 1 to 127 is bad",
        )
    passed = ended.cause == "itself" and ended.exit_code == 0
    return Trial(tried, int(passed), int(not passed), note=note)


def _proved(workspace: Workspace, bisection: Bisection, tried: BisectCandidate, recipe: Recipe, tag: str) -> Trial:
    """Proves the image against the behaviour of the end that passes: what changed since then is what is looked for."""
    project, lock = workspace.project, reading.of(workspace.project)
    passing = bisection.numbers[-1 if bisection.find_fix else 0]
    model = recipe.model or recipe.name
    own = _kept_reference(workspace) if tried.number != passing else None
    details = images.inspect(workspace.engine, tag)
    subject = Subject(tag, images.fingerprint(details) if details else "")
    find = own or reference.find(project, lock, bisection.repository, passing, model)
    pairing = ProvedPairing(model, recipe.revision, recipe)
    with work_folder.create(workspace, "bisect", {}) as work:
        (proof,) = prove.prove(workspace, tag, subject, (pairing,), lambda _: find, work.labels)
    evidence = proof.evidence
    if tried.number == passing and evidence.verdict != "fail":
        _keep_reference(workspace, tag, evidence.goldens, proof.raw)
    finding = next(iter(evidence.findings), None)
    note = f"{finding.check} at {finding.at}: {finding.text.splitlines()[0]}" if finding and finding.text else ""
    if evidence.verdict == "unclear" and not evidence.goldens:
        return Trial(tried, skipped=f"the proof came to no verdict: {note}")
    failed = evidence.verdict == "fail" or (evidence.verdict == "changed" and tried.number != passing)
    return Trial(tried, int(not failed), int(failed), note=note if failed else "")


def _keep_reference(workspace: Workspace, tag: str, goldens: Mapping[str, str], raw: bytes) -> None:
    content = {"image": tag, "goldens": dict(goldens), "texts": json.loads(raw).get("texts", {})}
    state_file.write(workspace.project.bisecting / "reference.json", json.dumps(content).encode())


def _kept_reference(workspace: Workspace) -> Reference | None:
    try:
        content = json.loads(regular_file.read(workspace.project.bisecting / "reference.json", _LARGEST))
        return Reference(content["image"], content["goldens"], content["texts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

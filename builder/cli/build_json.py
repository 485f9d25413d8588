"""The results of a build, and its plan, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.building.request import AlreadyBuilt, Built, HeldPointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from builder.building.outlook import BuildOutlook, Expectation
    from builder.building.planning import PlannedImage
    from builder.building.request import ModelOutcome
    from builder.commands.push import PushedImage


def document(
    results: Sequence[AlreadyBuilt | Built | PushedImage] = (),
    planned: Iterable[tuple[PlannedImage, BuildOutlook]] = (),
    written: Path | None = None,
) -> dict[str, Any]:
    """The results of a build, or with ``--dry-run`` what it would build, and the folder that it was written to."""
    return {
        "images": [_image(each) for each in results if isinstance(each, AlreadyBuilt | Built)],
        "pushed": [_pushed(each) for each in results if not isinstance(each, AlreadyBuilt | Built)],
        "planned": [_planned(image, outlook) for image, outlook in planned],
        "written": str(written) if written else None,
    }


def _image(result: AlreadyBuilt | Built) -> dict[str, Any]:
    return _built(result) if isinstance(result, Built) else _existing(result)


def _existing(result: AlreadyBuilt) -> dict[str, Any]:
    waiting = [each for each in result.models if each.state == "waiting"]
    return {
        "image": result.image,
        "outcome": "existing",
        "current": None if result.current == "nothing" else result.current or result.image,
        "bad": result.bad,
        "models": [_model(each, result.image) for each in result.models if each.state != "waiting"],
        "waiting": [_held(HeldPointer(each.model, True, each.image, each.missing, each.failed)) for each in waiting],
        "unchecked": dict(result.unchecked),
        "changes": [],
        "seconds": None,
        "size": None,
        "layers": None,
        "new_layers": None,
        "steps": None,
        "cached_steps": None,
        "compiled": [],
        "proofs": [],
        "log": None,
    }


def _model(outcome: ModelOutcome, image: str) -> dict[str, Any]:
    paired = image if outcome.state == "paired" else outcome.image or None
    return {"model": outcome.model, "state": outcome.state, "image": paired, "taken_from": None}


def _built(built: Built) -> dict[str, Any]:
    return {
        "image": built.image,
        "outcome": "built",
        "current": built.current or None,
        "bad": False,
        "models": [
            {"model": model, "state": "paired", "image": built.image, "taken_from": built.taken_from.get(model)}
            for model in built.models
        ],
        "waiting": [_held(each) for each in built.waiting],
        "unchecked": dict(built.unchecked),
        "changes": list(built.changes),
        "seconds": round(built.seconds, 1),
        "size": built.size,
        "layers": built.layers,
        "new_layers": built.new_layers,
        "steps": built.steps,
        "cached_steps": built.cached_steps,
        "compiled": [{"source": each.source, "jobs": each.jobs, "mib": each.mib} for each in built.compiled],
        "proofs": [
            {"model": each.evidence.subject.model, "verdict": each.evidence.verdict, "file": each.file}
            for each in built.proofs
        ],
        "log": built.log,
    }


def _held(pointer: HeldPointer) -> dict[str, Any]:
    return {
        "what": pointer.what if pointer.is_model else pointer.what.removesuffix(":latest"),
        "kind": "model" if pointer.is_model else "repository",
        "stays": pointer.stays or None,
        "failed": pointer.failed,
        "missing": [{"text": text, "command": command} for text, command in pointer.missing],
    }


def _pushed(pushed: PushedImage) -> dict[str, Any]:
    return {
        "image": str(pushed.image),
        "reference": pushed.reference,
        "digest": pushed.digest,
        "already": pushed.already,
        "latest": pushed.latest,
    }


def _planned(image: PlannedImage, outlook: BuildOutlook) -> dict[str, Any]:
    plan, existing = image.plan, image.comparison.existing
    return {
        "repository": plan.repository,
        "platform": plan.definition.platform,
        "input_hash": plan.input_hash,
        "existing": str(existing) if existing else None,
        "reasons": list(image.comparison.reasons),
        "warnings": list(plan.warnings),
        "steps": [
            {"name": step.name, "kept": number < image.kept_steps, "takes": dict(step.takes)}
            for number, step in enumerate(plan.steps)
        ],
        "jobs": [{"source": each.source, "jobs": each.jobs, "reason": each.reason} for each in outlook.jobs],
        "seconds": _expected(outlook.seconds),
        "bytes": _expected(outlook.disk),
        "free_bytes": outlook.free,
    }


def _expected(expectation: Expectation | None) -> dict[str, Any] | None:
    return {"amount": expectation.amount, "known_from": expectation.origin} if expectation else None

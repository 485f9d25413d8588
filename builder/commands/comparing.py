"""The compare command serves two images in turn, lets both rate the same texts, and reports if they answer alike.

Other commands also use this module to compare an image before they accept it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base.errors import ImageContentsError, MeasuringError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, field, replace
from builder.commands import measuring, servers
from builder.definitions import build_target
from builder.evidence import requirements
from builder.lab.measure import forced_texts, image_likeness, measurement
from builder.lab.measure.forced_texts import ForcedPrompts, TextPlan
from builder.lock import lock_file
from builder.serving import image_words, model_weights, preparation, readiness, selection
from builder.serving.selection import SelectedImage, ServedImage

if TYPE_CHECKING:
    from builder.definitions.recipe import Recipe
    from builder.lab.measure.measurement import MeasuredServer, Outcome
    from builder.lock.model import ImageName, Lock
    from builder.numbers.workspace import Workspace


@dataclass(frozen=True)
class CompareOptions:
    """The texts of a comparison, and the allowed change of perplexity as a share (None: the model's requirement)."""

    plan: TextPlan = field(default_factory=TextPlan)
    within: float | None = None


def compare_options(
    seed: int, depth: int | None, times: int, sessions: Path | None, within: float | None
) -> CompareOptions:
    """The options as typed, with ``within`` in percent. Raises UsageError for a folder without saved requests."""
    requests = forced_texts.read_sessions(sessions) if sessions else ()
    return CompareOptions(TextPlan(seed, depth or 0, times, requests), None if within is None else within / 100)


@dataclass(frozen=True)
class ComparedSide:
    """One of the two sides: its name in messages (``shown``), its image with the recipe, and the changes of its
    command. ``weights`` is empty for the weights of the pairing."""

    shown: str
    selection: ServedImage
    overrides: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    weights: str = ""

    @property
    def recipe(self) -> Recipe:
        return self.selection.recipe


@dataclass(frozen=True)
class CompareRequest:
    """A comparison as typed: the numbers, the model or recipe (empty: the only model of the images), and the changes of
    the second side: settings, arguments of vLLM, a checkpoint, a recipe file."""

    images: tuple[str, ...]
    model: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    checkpoint: str = ""
    recipe: str = ""


@dataclass(frozen=True)
class KeptLikeness:
    """A comparison, and its file of evidence (None if the second image has no number). ``notes`` name the settings that
    affect the figures."""

    first: str
    second: str
    model: str
    likeness: image_likeness.ImageLikeness
    outcome: Outcome
    file: Path | None
    within: float | None
    notes: tuple[str, ...] = ()


def compare_numbers(workspace: Workspace, request: CompareRequest, options: CompareOptions) -> KeptLikeness:
    """Compares two numbers, or a number with itself under other settings, and records the result as evidence of the
    second. Raises UsageError if the request does not name two sides, and the errors of `compare_sides`."""
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    text = request.model or _only_model(workspace, lock, request.images)
    chosen = selection.select_any(project, lock, text)
    named = [measuring.numbered(workspace, text, each) for each in request.images]
    names = named or ([chosen.image] if isinstance(chosen, SelectedImage) else [])
    differs = bool(request.overrides or request.extra or request.checkpoint or request.recipe)
    if not names or (len(names) == 1 and not differs):
        message = "a comparison takes two numbers, or one number and a change"
        hint = "for example `builder compare 6 7 MODEL`, or `builder compare 6 MODEL --set max-num-seqs=8`"
        raise UsageError(message, hint=hint)
    first = selection.with_number(lock, chosen.recipe, names[0])
    recipe = build_target.find_target(project, request.recipe).recipe if request.recipe else chosen.recipe
    if recipe is None:
        raise UsageError(f"`{request.recipe}` is not a recipe", hint="--recipe takes a file in recipes/")
    second = selection.with_number(lock, recipe, names[-1])
    extra, requested = request.extra, ""
    if request.checkpoint:
        weights = model_weights.weights_of_checkpoint(project, workspace.environment, second, request.checkpoint)
        second, extra, requested = replace(second, recipe=weights.recipe), (*weights.extra, *extra), weights.requested
    side = ComparedSide(str(names[-1]), second, request.overrides, extra, requested)
    return compare_sides(workspace, ComparedSide(str(names[0]), first), side, options)


def compare_checkpoint(workspace: Workspace, text: str, source: str, options: CompareOptions) -> KeptLikeness:
    """Compares the checkpoint that ``text`` serves with one of its sources (empty: the source of its first step). The
    paired image serves both. Raises the errors of `source_weights_of` and `compare_sides`."""
    lock = lock_file.read_project_lock(workspace.project)
    chosen = selection.select_any(workspace.project, lock, text)
    weights = model_weights.source_weights_of(workspace.project, workspace.environment, lock, chosen, source)
    first = ComparedSide(
        weights.requested, replace(chosen, recipe=weights.recipe), extra=weights.extra, weights=weights.requested
    )
    name = weights.checkpoint.short if weights.checkpoint else ""
    return compare_sides(workspace, first, ComparedSide(name, chosen), options)


def _only_model(workspace: Workspace, lock: Lock, images: tuple[str, ...]) -> str:
    from builder.numbers import status

    names = [status.named_number(workspace.project, lock, each)[0] for each in images if ":" in each]
    models = dict.fromkeys(lock.models) if len(names) < len(images) else {}
    models |= dict.fromkeys(model for name in names for model in requirements.models_of(workspace.project, lock, name))
    if len(models) == 1:
        return next(iter(models))
    hint = f"they serve {', '.join(models)}" if models else "for example `builder compare 6 7 Qwen/Qwen3-0.6B`"
    raise UsageError("the images do not determine which model to serve: name a model or a recipe", hint=hint)


def compare_sides(
    workspace: Workspace, first: ComparedSide, second: ComparedSide, options: CompareOptions
) -> KeptLikeness:
    """Serves both sides in turn, lets both rate the same texts, and records the outcome as evidence of the second.
    Afterwards the model's own server serves as before. Raises MeasuringError if the sides cannot be compared, and the
    errors of starting a server."""
    recipe = second.recipe
    is_other_model = first.recipe.model != recipe.model
    recipes = {each.recipe.file: each.recipe for each in (first, second)}.values()
    served = [each for each in recipes if (own := measuring.server_of(workspace, each)) and own.head.service.is_up]
    within = options.within
    if within is None:
        within = requirements.required(workspace.project, recipe.model, recipe).same
    for each in recipes:
        servers.stop_candidates(workspace, each.file, "which an interrupted comparison left running")
    notes = [f"different models are compared: {first.recipe.model} and {recipe.model}"] if is_other_model else []
    warnings = [*notes, *(selection.mods_warning(workspace.project, side.selection) for side in (first, second))]
    for warning in dict.fromkeys(filter(None, warnings)):
        workspace.report(Message(warning))
    for side in (first, second):  # both are checked before the first is served, which takes minutes
        chosen = side.selection
        # An image that was built here passed this check in its build.
        if isinstance(chosen, SelectedImage) and chosen.record.adopted and "vllm" not in chosen.record.versions:
            message = f"{side.shown} contains no vLLM: nothing was compared"
            raise ImageContentsError(message, hint="compare two images that serve the model")
        request = _request(workspace, side)
        preparation.prepare_candidate(workspace, request, side.selection)
        if side.overrides or side.extra or side.recipe.file != first.recipe.file:
            typed = (request.overrides, tuple(request.extra))
            image_words.require_accepted(workspace, side.selection.name, side.recipe, *typed)
    is_interrupted = False
    try:
        with _served(workspace, first) as before:
            notes += _notes(before, first.shown)
            given, by_first = _rated(workspace, before, options.plan, first.shown)
        with _served(workspace, second) as server:
            notes += _notes(server, second.shown)
            _, by_second = _rated(workspace, server, options.plan, second.shown, given)
            likeness = image_likeness.compare_images(given, by_first, by_second)
            reference = _reference(workspace, before, first, is_other_model=is_other_model)
            outcome = image_likeness.likeness_outcome(likeness, options.plan, (by_first, by_second), reference, within)
            weights = {"weights": second.weights} if second.weights else {}
            file = measurement.keep_run(workspace, server, outcome, weights)
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        for each in recipes:
            servers.stop_candidates(workspace, each.file, "which was compared")
        for each in served:
            measuring.serve_again(workspace, each, detach=is_interrupted)
    model = recipe.model or recipe.name
    return KeptLikeness(first.shown, second.shown, model, likeness, outcome, file, within, tuple(notes))


@contextmanager
def _served(workspace: Workspace, side: ComparedSide) -> Iterator[MeasuredServer]:
    with measuring.candidate_server(workspace, _request(workspace, side), side.selection) as server:
        try:
            yield measurement.find_measured_server(server)
        except MeasuringError as error:
            raise readiness.end_while_measured(workspace.project, server) or error from None


def _request(workspace: Workspace, side: ComparedSide) -> preparation.ServeRequest:
    request = measuring.request_as_before(workspace, side.recipe)
    return replace(request, overrides={**request.overrides, **side.overrides}, extra=(*request.extra, *side.extra))


def _rated(
    workspace: Workspace, server: MeasuredServer, plan: TextPlan, shown: str, given: ForcedPrompts | None = None
) -> tuple[ForcedPrompts, forced_texts.RatedImage]:
    own, rated = forced_texts.rate_image(server.model, plan, shown, workspace.report, given)
    return own, forced_texts.with_answers(server.model, rated, shown, workspace.report)


def _notes(server: MeasuredServer, shown: str) -> Iterator[str]:
    """Notes on settings of a running server that affect the figures and are not faults of the image."""
    cache = measurement.served_option(server.running, "--kv-cache-dtype", "--kv_cache_dtype")
    if cache not in {"", "auto"}:
        yield f"{shown} stores its KV cache as {cache}"
    if measurement.served_option(server.running, "--speculative-config", "--speculative_config", "-sc"):
        yield f"{shown} uses speculative decoding for its answers; the ratings come from the model itself"


def _reference(
    workspace: Workspace, server: MeasuredServer, side: ComparedSide, *, is_other_model: bool
) -> dict[str, str]:
    """The first side, as evidence records it. Only a number that serves the same model with its own weights gets a
    fingerprint: no other reference satisfies a requirement."""
    record = lock_file.read_project_lock(workspace.project).image(server.image) if server.image else None
    if record is None or side.weights or is_other_model:
        return {"reference": side.shown}
    return {"reference": str(server.image), "reference_fingerprint": record.fingerprint}


def require_same(workspace: Workspace, model: str, now: ImageName, candidate: ImageName) -> KeptLikeness:
    """Compares a candidate with the image that serves the model now, by the model's requirements."""
    workspace.report(Message(f"comparing {candidate} with {now}: {model} requires the same answers"))
    lock = lock_file.read_project_lock(workspace.project)
    recipe = requirements.recipe_of(workspace.project, lock, candidate, model)
    chosen = recipe or selection.select_image(workspace.project, lock, model).recipe
    sides = [ComparedSide(str(each), selection.with_number(lock, chosen, each)) for each in (now, candidate)]
    return compare_sides(workspace, sides[0], sides[1], CompareOptions())

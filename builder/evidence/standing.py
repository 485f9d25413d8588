"""The standing of an image with a model summarizes its recorded runs in one word.

The latest proof decides. The runs of several images form a table, and two images can be compared.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from builder.base import files, hub_cache
from builder.base.errors import BuilderError, FileProblemsError, Problem, UsageError
from builder.base.hub_cache import is_commit
from builder.base.machine_record import machine_changes
from builder.base.values import dataclass
from builder.base.words import sha256_of
from builder.definitions import command, configuration, container, recipe
from builder.evidence import run_record
from builder.evidence.run_record import SAME, Evidence, Figure, Kind, Subject, unlike

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import RequiredEvidence
    from builder.definitions.recipe import Recipe
    from builder.lock.model import ImageName, Lock, Pairing


Standing = Literal["proven", "changed", "failed", "stale", "unproven"]
WORST_FIRST: tuple[Standing, ...] = ("failed", "changed", "stale", "unproven", "proven")
Requirement: TypeAlias = "tuple[Kind, str]"
SetNow: TypeAlias = "Callable[[Kind, str], str | None]"


def stale_reasons(evidence: Evidence, present: Subject, set_now: str | None = None) -> tuple[str, ...]:
    """Each part of the subject that has changed since the run; empty if the run is still current. Age does not matter,
    and unknown parts are not compared. ``set_now`` is the present digest of the conversations, script or profile."""
    then = evidence.subject
    before, now = (each.revision if each.revision and is_commit(each.revision) else "" for each in (then, present))
    was, served = (PurePosixPath(subject.recipe or "").stem for subject in (then, present))
    compared = [
        (then.fingerprint, present.fingerprint, "the image has different content"),
        (then.model, present.model, f"the model is now {present.model}"),
        (before, now, f"the model's revision changed from {before[:12]} to {now[:12]}"),
        (then.template, present.template, "the chat template changed"),
        (then.recipe, present.recipe, f"the recipe changed from {was} to {served}"),
        (then.arguments, present.arguments, "the recipe's options changed"),
    ]
    reasons = [reason for old, new, reason in compared if old and new and old != new]
    if dict(then.overrides) != dict(present.overrides):
        used = "the run used options that are not in the recipe"
        reasons.append(used if then.overrides else "the run did not use these options")
    if then.machine and present.machine:
        parts = {"GPU", "driver"} if then.machine.gpu or present.machine.gpu else {"processor"}
        changes = machine_changes(then.machine, present.machine)
        reasons += [f"the machine changed: {change}" for change in changes if change.part in parts]
    if evidence.set and set_now and evidence.set != set_now:
        sets = {"prove": "the conversations", "bench": "the profile", "same": "the texts"}
        reasons.append(f"{sets.get(evidence.kind, 'the probe')} changed")
    return tuple(reasons)


@dataclass(frozen=True)
class PairingStanding:
    """The standing of an image with one model (None: the image itself), the reason, and the ``run`` that decided."""

    model: str | None
    standing: Standing
    why: str = ""
    run: Evidence | None = None


def standing_of(
    model: str | None,
    runs: Sequence[Evidence],
    present: Callable[[Kind], Subject],
    required: Collection[Requirement] = (),
    sets: Mapping[Requirement, str] | None = None,
) -> PairingStanding:
    """The standing of an image with ``model`` by its ``runs`` in order. ``present`` returns the present subject of a
    kind. ``required`` names the probes and profiles that also count; ``sets`` has the known digests of their sets."""
    sets = sets or {}
    own = [run for run in runs if run.subject.model == model]
    for kind, name in sorted(required):
        run = latest(own, kind, name)
        if run and run.verdict == "fail" and not stale_reasons(run, present(kind), sets.get((kind, name))):
            return PairingStanding(model, "failed", f"{kind} {name} failed", run)
    served = present("prove").recipe
    proofs = [run for run in own if run.kind == "prove"]
    # A trial with another recipe does not affect the recipe that serves the model.
    proof = latest([run for run in proofs if served in {None, run.subject.recipe}] or proofs, "prove")
    if proof is None:
        return PairingStanding(model, "unproven")
    if reasons := stale_reasons(proof, present("prove"), sets.get(("prove", proof.name))):
        return PairingStanding(model, "stale", "; ".join(reasons), proof)
    if proof.verdict == "unclear":
        return PairingStanding(model, "unproven", "the last proof reached no verdict", proof)
    by_verdict: dict[str, Standing] = {"pass": "proven", "changed": "changed", "fail": "failed"}
    return PairingStanding(model, by_verdict[proof.verdict], proof.accepted, proof)


def latest(runs: Sequence[Evidence], kind: Kind, name: str | None = None) -> Evidence | None:
    """The last run of this kind, and of this name if given."""
    return next((run for run in reversed(runs) if run.kind == kind and name in {None, run.name}), None)


def worst(standings: Collection[PairingStanding]) -> Standing | None:
    return min((each.standing for each in standings), key=WORST_FIRST.index, default=None)


@dataclass(frozen=True)
class JudgedRun:
    """A run, and the reasons why it is stale; empty if it is current."""

    run: Evidence
    stale: tuple[str, ...]


@dataclass(frozen=True)
class ImageEvidence:
    """The runs of one image in order, and its standing with each model that it serves, served or was run with.
    ``problems`` are the problems of damaged files; ``last`` has the last run of each kind, name and model."""

    runs: tuple[Evidence, ...] = ()
    pairings: tuple[PairingStanding, ...] = ()
    serves: frozenset[str] = frozenset()
    served: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    last: tuple[JudgedRun, ...] = ()

    @property
    def standing(self) -> Standing | None:
        """The worst standing with the models that the image serves; else with those that it served; else with all
        models."""
        chosen = self.serves or self.served
        return worst([each for each in self.pairings if each.model in chosen] or self.pairings)

    def with_model(self, model: str) -> PairingStanding | None:
        return next((pairing for pairing in self.pairings if pairing.model == model), None)

    def standing_with(self, model: str) -> Standing | None:
        pairing = self.with_model(model)
        return pairing.standing if pairing else None


def evidence_overview(
    project: Project, lock: Lock, names: Collection[ImageName], environ: Mapping[str, str], sets: SetNow
) -> dict[ImageName, ImageEvidence]:
    """The evidence of these images; empty if the project has none. ``sets`` returns the present digest of a probe or
    profile."""
    if not project.evidence.is_dir():
        return {}

    @functools.cache
    def facts_of(file: str | None) -> ServedFacts | None:
        used = recorded_recipe(project, file) if file else None
        return served_facts(project, used, NOTHING, environ) if used else None

    def facts_with(image: ImageName, model: str | None) -> ServedFacts | None:
        pairing = pairing_of(lock, image, model)
        return facts_of(pairing.recipe) if pairing else None

    def present_of(image: ImageName, model: str | None, kind: Kind) -> Subject:
        return subject_with(lock, image, model, kind, facts_with(image, model), environ)

    configured = configuration.Configuration()
    with suppress(FileProblemsError):  # commands that depend on builder.yaml report this error
        configured = configuration.load_configuration(project)
    set_now = functools.cache(sets)
    evidence = {}
    for name in names:
        kept = run_record.look_for_runs(project, name)
        present_sets = {key: now for run in kept.runs if (now := set_now(*(key := (run.kind, run.name))))}
        served = [model for model in sorted(lock.models) if pairing_of(lock, name, model)]
        pairings = []
        for model in dict.fromkeys((*served, *(run.subject.model for run in kept.runs))):
            facts = facts_with(name, model)
            wanted = configured.required_of(model)
            required = _named(wanted.joined(facts.recipe.requires) if facts else wanted, kept.runs)
            present = functools.partial(present_of, name, model)
            pairings.append(standing_of(model, kept.runs, present, required, present_sets))
        last = {(run.kind, run.name, run.subject.model): run for run in kept.runs}
        evidence[name] = ImageEvidence(
            runs=kept.runs,
            pairings=tuple(pairings),
            serves=frozenset(model for model in served if lock.models[model].pairing.image == name),
            served=frozenset(served),
            problems=kept.problems,
            last=tuple(
                JudgedRun(run, stale_reasons(run, present_of(name, model, kind), present_sets.get((kind, label))))
                for (kind, label, model), run in last.items()
            ),
        )
    return evidence


def _named(wanted: RequiredEvidence, runs: Sequence[Evidence]) -> set[Requirement]:
    """The probes, profiles and comparisons that count in addition to the proof. If figures are required, all measured
    profiles count."""
    required: set[Requirement] = {("probe", probe) for probe in wanted.probes}
    if wanted.same is not None:
        required.add(("same", run_record.SAME))
    return required | {("bench", run.name) for run in runs if run.kind == "bench" and wanted.figures}


# The subject of a run is the image, model and recipe parts that the run belongs to. The functions below find the
# present subject, only from images.lock and the project's files; `stale_reasons` compares it with a recorded subject.

NOTHING: Mapping[str, str] = MappingProxyType({})

_LARGEST_TEMPLATE = 4 * 1024 * 1024
# The options that decide how messages become a prompt, and how an answer becomes messages.
_OF_BEHAVIOUR = frozenset(
    {
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs"),
        *("enable-auto-tool-choice", "exclude-tools-when-tool-choice-none"),
        *("reasoning-parser", "reasoning-parser-plugin", "tool-call-parser", "tool-parser-plugin", "tool-server"),
        *("tokenizer", "tokenizer-mode", "tokenizer-revision"),
    }
)
# The options for the address of a server and for its names.
_OF_THE_ADDRESS = frozenset({"api-key", "host", "model", "port", "revision", "served-model-name", "uds"})
_KEYS = frozenset({"VLLM_API_KEY"})


@dataclass(frozen=True)
class ServedFacts:
    """A recipe and its parts of a subject. ``arguments`` are digests by kind; empty if the command cannot be
    rendered."""

    recipe: Recipe
    arguments: Mapping[Kind, str]
    template: str | None


def present_subject(
    project: Project,
    lock: Lock,
    image: ImageName,
    model: str | None,
    kind: Kind,
    *,
    recipe: Recipe | None = None,
    environ: Mapping[str, str] = NOTHING,
    overrides: Mapping[str, str] = NOTHING,
) -> Subject:
    """The present subject of a run of this kind. ``recipe`` defaults to the recipe of the pairing; ``environ`` gives
    the paths of the models' cache and of volumes. Unknown parts are None."""
    pairing = pairing_of(lock, image, model)
    if recipe is None and pairing and pairing.recipe:
        recipe = recorded_recipe(project, pairing.recipe)
    facts = served_facts(project, recipe, overrides, environ) if recipe else None
    return subject_with(lock, image, model, kind, facts, environ, overrides)


def subject_with(
    lock: Lock,
    image: ImageName,
    model: str | None,
    kind: Kind,
    facts: ServedFacts | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] = NOTHING,
) -> Subject:
    """The present subject of a run of this kind, with the recipe parts ``facts``."""
    record, pairing = lock.image(image), pairing_of(lock, image, model)
    revision = pairing.revision if pairing else None
    if facts and facts.recipe.model == model and facts.recipe.revision:
        revision = facts.recipe.revision
    if model and revision and not hub_cache.is_commit(revision):
        revision = hub_cache.revision(environ, model, revision) or revision
    return Subject(
        image=str(image),
        fingerprint=record.fingerprint if record else "",
        model=model,
        revision=revision,
        template=facts.template if facts else None,
        recipe=facts.recipe.file if facts else pairing.recipe if pairing else None,
        arguments=facts.arguments.get(kind) if facts else None,
        overrides=dict(overrides),
    )


def pairing_of(lock: Lock, image: ImageName, model: str | None) -> Pairing | None:
    """The present or an earlier pairing of a model with an image; None if they were never paired."""
    paired = lock.models.get(model or "")
    pairings = (paired.pairing, *paired.previous) if paired else ()
    return next((pairing for pairing in pairings if pairing.image == image), None)


def recorded_recipe(project: Project, file: str) -> Recipe | None:
    """The recipe that images.lock or the label of a server names; None if it no longer exists or cannot be read."""
    try:
        path = recipe.recorded(project, file)
        return recipe.load_recipe(project, path) if path else None
    except BuilderError:
        return None


def served_facts(
    project: Project, used: Recipe, overrides: Mapping[str, str], environ: Mapping[str, str]
) -> ServedFacts:
    digests: dict[Kind, str] = {}
    template = None
    with suppress(FileProblemsError, UsageError):
        words = command.render_command(used, overrides).words
        server = of_arguments("bench", words, used.env)  # same dependencies as a benchmark
        digests = {"prove": of_arguments("prove", words), "bench": server, "probe": server, "same": server}
        template = _mounted_template(project, used, words, environ)
    return ServedFacts(used, digests, template)


def of_arguments(kind: Kind, words: Sequence[str], env: Mapping[str, object] = NOTHING) -> str:
    """The digest (``sha256:…``) of the part of a serve command that a run of this kind depends on. For a proof, these
    are the options of the template, the parsers and similar; otherwise the environment, and all options except the
    model, its revision and the address. ``words`` come from a `ServeCommand`, ``env`` from the recipe. The order of
    options does not matter."""
    options = options_of(kind, words)
    variables = {} if kind == "prove" else {name: str(env[name]) for name in env if name not in _KEYS}
    text = json.dumps([options, variables], sort_keys=True)
    return sha256_of(text.encode(errors="replace"))


def options_of(kind: Kind, words: Sequence[str]) -> dict[str, list[str | None]]:
    """The options of a serve command that a run of this kind depends on, by name, each with its values."""
    options: dict[str, list[str | None]] = {}
    for used in command.options(words):
        name = used.option.lstrip("-").replace("_", "-")
        if name in _OF_BEHAVIOUR if kind == "prove" else name not in _OF_THE_ADDRESS:
            several = command.values(words, used.option)
            values = several if len(several) > 1 else (used.value,)
            options[name] = [None if value is None else _plain(value) for value in values]
    return options


def _plain(value: str) -> str:
    """The value of an option; JSON is normalized to one layout."""
    if value.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(value), sort_keys=True)
    return value


def _mounted_template(project: Project, used: Recipe, words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The digest of the chat template, if the recipe mounts it from this machine or has it in its command. None for a
    template in the image or model."""
    value = command.option(words, "--chat-template")
    if not value:
        return None
    if "{" in value or "\n" in value:
        return sha256_of(value.encode(errors="replace"))
    path = mounted(project, used, value, environ)
    with suppress(OSError):
        return sha256_of(files.read_plain_file(path.resolve(), _LARGEST_TEMPLATE)) if path else None
    return None


def mounted(project: Project, used: Recipe, path: str, environ: Mapping[str, str]) -> Path | None:
    """The local file or folder that is mounted at ``path`` in the server's container; None without such a mount."""
    for text in reversed(used.volumes):
        with suppress(ValueError):
            mount = container.parse_volume(text, environ, project.root)
            return Path(mount.source, PurePosixPath(path).relative_to(mount.target))
    return None


# The recorded runs of several images: a table of images and models, and the comparison of two images.

CellWord = Literal["proven", "changed", "failed", "stale", "unclear", "never tried"]
_BY_VERDICT: dict[str, CellWord] = {"pass": "proven", "changed": "changed", "fail": "failed", "unclear": "unclear"}
_CELL_WORDS: tuple[CellWord, ...] = (*_BY_VERDICT.values(), "stale", "never tried")
_KINDS: tuple[Kind, ...] = ("prove", "bench", "probe", "same")
_ONLY_NAMES = {("prove", "behaviour"), ("same", SAME)}  # these kinds have only one name


@dataclass(frozen=True)
class MatrixCell:
    """One proof of a model on an image: its ``word`` and the reason, the file of its ``run``, and the duration in
    ``seconds``."""

    image: ImageName
    model: str
    proof: str
    word: CellWord = "never tried"
    why: str = ""
    run: str | None = None
    started: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Matrix:
    """The table. ``images`` has the newest image of each repository first; ``proofs`` are such as ``prove`` or ``bench
    quick``. Each combination has a cell."""

    images: tuple[ImageName, ...]
    models: tuple[str, ...]
    proofs: tuple[str, ...]
    cells: tuple[MatrixCell, ...]

    def counts(self) -> dict[CellWord, int]:
        counts = Counter(cell.word for cell in self.cells)
        return {word: counts[word] for word in _CELL_WORDS}


def models_of(lock: Lock, evidence: Iterable[ImageEvidence]) -> tuple[str, ...]:
    """All models that are paired with an image, or were run with one, sorted."""
    run_with = {each.run.subject.model for image in evidence for each in image.last}
    return tuple(sorted({*lock.models, *filter(None, run_with)}))


def build_matrix(
    images: Collection[ImageName], models: Collection[str], evidence: Mapping[ImageName, ImageEvidence]
) -> Matrix:
    proofs: dict[str, tuple[int, str]] = {"prove": (0, "")}
    cells: dict[tuple[ImageName, str, str], MatrixCell] = {}
    for name in images:
        for judged in evidence[name].last if name in evidence else ():
            run, model = judged.run, judged.run.subject.model
            if not model or model not in models:
                continue
            proof = run.kind if (run.kind, run.name) in _ONLY_NAMES else f"{run.kind} {run.name}"
            proofs[proof] = (_KINDS.index(run.kind), run.name)
            key, file = (name, model, proof), f"evidence/{name.repository}/{name.number}/{run.file}"
            why = "; ".join(judged.stale) or run.accepted
            cells[key] = MatrixCell(*key, word_of(judged), why, file, run.started, run.seconds)
    ordered = tuple(sorted(proofs, key=proofs.__getitem__))
    keys = product(images, models, ordered)
    return Matrix(tuple(images), tuple(models), ordered, tuple(cells.get(key) or MatrixCell(*key) for key in keys))


def word_of(judged: JudgedRun) -> CellWord:
    return "stale" if judged.stale else _BY_VERDICT[judged.run.verdict]


# Pairs of runs of two images with the same kind, name and model, and the figures of both.


@dataclass(frozen=True)
class FigurePair:
    """One figure of two runs under the same conditions; None if a run did not measure it. ``figure`` is one of the
    two."""

    figure: Figure
    before: Figure | None
    after: Figure | None

    @property
    def change(self) -> float | None:
        """The change of the mean as a fraction; None if the two cannot be compared."""
        if not (self.before and self.after and self.before.values and self.after.values and self.before.mean):
            return None
        return (self.after.mean - self.before.mean) / abs(self.before.mean)


@dataclass(frozen=True)
class RunPair:
    """The last runs of one kind, name and model on two images. ``unlike`` has other differences, which make the figures
    incomparable; ``goldens`` names the conversations with different tokens."""

    kind: Kind
    name: str
    model: str | None
    before: JudgedRun | None
    after: JudgedRun | None
    unlike: tuple[str, ...] = ()
    figures: tuple[FigurePair, ...] = ()
    goldens: tuple[str, ...] = ()


def pairs_side_by_side(before: Sequence[JudgedRun], after: Sequence[JudgedRun]) -> tuple[RunPair, ...]:
    """The pairs of two images' last runs."""
    old, new = (
        {(each.run.kind, each.run.name, each.run.subject.model): each for each in runs} for runs in (before, after)
    )
    return tuple(_pair(key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new]))


def _pair(key: tuple[Kind, str, str | None], before: JudgedRun | None, after: JudgedRun | None) -> RunPair:
    if before is None or after is None:
        return RunPair(*key, before, after)
    old, new = before.run, after.run
    differing = tuple(unlike(old, new))
    olds, news = (
        {(each.name, each.unit, *sorted(each.at.items())): each for each in run.figures} for run in (old, new)
    )
    figures = {**olds, **news}
    pairs = tuple(FigurePair(figure, olds.get(place), news.get(place)) for place, figure in figures.items())
    goldens = (
        tuple(sorted(c for c, ids in old.goldens.items() if new.goldens.get(c, ids) != ids)) if not differing else ()
    )
    return RunPair(*key, before, after, differing, pairs, goldens)

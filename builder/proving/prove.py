"""The proof of an image: for each model that it serves, the behaviour of its template and parsers, as evidence."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder import timestamp
from builder.definitions.recipes import arguments, command
from builder.evidence import subjects
from builder.evidence.proof import Proof
from builder.evidence.record import Evidence, Figure, Finding, Subject
from builder.plan.model import WORKSPACE
from builder.proving import conversations, families, front_end, harmony, judging, mistral, model_files, served_options
from builder.proving.properties import Style

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from builder.definitions.recipes.command import ServeCommand
    from builder.definitions.recipes.recipe import Recipe
    from builder.proving.front_end import FrontEndRun, Setup, SetupAnswers
    from builder.proving.judging import Judgement, Reference
    from builder.proving.model_files import ModelFiles
    from builder.proving.served_options import ServedOptions
    from builder.workspace import Workspace

NAME = "behaviour"
# Errors that are of the template or the parsers; whatever else ends the front end says nothing about them.
_OWN_FAULT = re.compile(
    r"jinja2\.exceptions|TemplateSyntaxError|TemplateError|has not been registered|invalid tool call parser"
    r"|invalid reasoning parser|The supplied chat template|not found.*(?:tool|reasoning)[ _]parser",
    re.IGNORECASE,
)
# The last line of argparse: `vllm launch render: error: argument --max-model-len: invalid …`.
_REFUSED_OPTION = re.compile(r"^vllm\b[^:\n]*: error: (?P<why>.+)$", re.MULTILINE)
_DATES = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d/%m/%Y", "%m/%d/%Y", "%A, %B %d, %Y")


@dataclass(frozen=True)
class ProvedPairing:
    """A model with the recipe that serves it; ``revision`` as recorded or requested, None for the newest."""

    model: str
    revision: str | None
    recipe: Recipe


def prove(
    workspace: Workspace,
    image: str,
    subject: Subject,
    pairings: Sequence[ProvedPairing],
    references: Callable[[str], Reference | None],
    labels: Mapping[str, str],
) -> tuple[Proof, ...]:
    """Proves ``image``, which the engine has under that name, for each pairing. ``subject`` names the image that the
    evidence is of; ``references`` gives what a model's behaviour is compared with. Raises ImageStateError for a missing
    image, ImageContentsError for one without a Python, FileProblemsError and UsageError for a recipe whose command
    cannot be rendered."""
    commands = [command.render(pairing.recipe, {}) for pairing in pairings]
    options = [served_options.of(each) for each in commands]
    files = [
        model_files.of(workspace, pairing.recipe, chosen.model or pairing.model, pairing.revision)
        for pairing, chosen in zip(pairings, options, strict=True)
    ]
    parts = list(zip(pairings, commands, options, files, strict=True))
    setups = [_setup(workspace, *each) for each in parts]
    began, started = datetime.now(UTC), timestamp.now()
    run = front_end.ask(workspace.engine, image, setups, labels, workspace.report)
    proofs = []
    for number, (pairing, rendered, chosen, own) in enumerate(parts):
        reference = references(pairing.model)
        answers = run.setups[number] if run.setups else None
        judgement = _judgement(run, setups[number], answers, chosen, own, reference, _dates(began))
        evidence = Evidence(
            kind="prove",
            name=NAME,
            version=f"vLLM {run.version}",
            set=conversations.digest_of_set(),
            started=started,
            seconds=answers.seconds if answers else 0.0,
            subject=_subject(subject, pairing, rendered, own, answers),
            verdict=judgement.verdict,
            counts=judgement.counts,
            figures=_figures(answers),
            findings=judgement.findings,
            goldens=judgement.goldens,
        )
        raw = json.dumps({"version": run.version, "texts": judgement.texts}, ensure_ascii=False, sort_keys=True)
        proofs.append(Proof(evidence, raw.encode(), own.stand_in, reference.image if reference else ""))
    return tuple(proofs)


def _setup(
    workspace: Workspace, pairing: ProvedPairing, rendered: ServeCommand, chosen: ServedOptions, own: ModelFiles
) -> Setup:
    mounted = {}
    for path in filter(None, (chosen.template, *_plugins(chosen))):
        inside = PurePosixPath(WORKSPACE, path)
        file = model_files.mounted(workspace, pairing.recipe, str(inside))
        if file and file.is_file():
            mounted[inside] = file.read_bytes()
    questions = conversations.questions(chosen.tool_parser, chosen.reasoning_parser)
    environment = dict(rendered.env)
    if harmony.is_spoken(own.files) and (vocabulary := harmony.vocabulary(own.files)):
        mounted[harmony.FILE] = vocabulary
        environment |= harmony.VARIABLES
    return front_end.Setup(
        model=pairing.model,
        files=own.files,
        options=chosen.argv,
        environment=environment,
        template=chosen.template,
        mounted=mounted,
        questions=mistral.prompts(questions) if mistral.renders(chosen) else questions,
    )


def _plugins(chosen: ServedOptions) -> tuple[str, ...]:
    names = ("--tool-parser-plugin", "--reasoning-parser-plugin")
    return tuple(arguments.option(chosen.argv, name) or "" for name in names)


def _judgement(
    run: FrontEndRun,
    setup: Setup,
    answers: SetupAnswers | None,
    chosen: ServedOptions,
    own: ModelFiles,
    reference: Reference | None,
    dates: Sequence[str],
) -> Judgement:
    if answers is None:
        what = f"vLLM {run.version}" if run.version else "an image without vLLM"
        return _without_answers(f"it cannot be proven with {what}: {run.failure}")
    if answers.answers is None:
        refused = _REFUSED_OPTION.search(answers.log)
        is_own = bool(refused or _OWN_FAULT.search(answers.log)) and not chosen.unread
        if refused:
            return _without_answers(f"vLLM refuses the recipe's options: {refused['why']}", is_own=is_own)
        return _without_answers(f"the front end does not start:\n{_end(answers.log)}", is_own=is_own)
    if own.stand_in and not chosen.template:
        return _without_answers(f"its template is the model's own, which cannot be had: {own.stand_in}")
    if own.stand_in and families.of_calls(chosen.tool_parser) == "gpt-oss":
        return _without_answers(f"GPT-OSS is parsed by tokens of its own, which cannot be had: {own.stand_in}")
    if any(harmony.MISSING in each.get("refused", "") for each in answers.answers.values()):
        return _without_answers("GPT-OSS's vocabulary is neither in the image nor that of the model's tokenizer")
    if answers.was_killed:
        return _without_answers("the front end was killed while it was asked, as for want of memory")
    questions = [each for each in setup.questions if not answers.broke_off or each.name in answers.answers]
    judgement = judging.judge(
        questions,
        answers.answers,
        tokenizer=own.digest,
        style=Style(
            names_roles=bool(families.of_calls(chosen.tool_parser)) and bool(chosen.tool_parser),
            reasons=families.forgets_reasoning(chosen.reasoning_parser),
            call=families.call_mark(chosen.tool_parser),
            begins=families.beginning(chosen.tool_parser),
            always_begins=families.of_calls(chosen.tool_parser) == "gpt-oss",
            source=answers.template or (_template_that_comes_with(own) or b"").decode(errors="replace"),
        ),
        reference=reference,
        dates=dates,
        is_published=_is_published(chosen.template),
    )
    if not answers.broke_off:
        return judgement
    left = len(setup.questions) - len(questions)
    text = f"{answers.broke_off}, so that {left} others were not asked\n{_end(answers.log)}"
    return replace(judgement, verdict="fail", findings=(Finding("front end", "", "fail", text), *judgement.findings))


def _end(log: str) -> str:
    return "\n".join(f"  {line}" for line in log.strip().splitlines()[-12:])


def _is_published(template: str) -> bool:
    """True for the model's own template, and one of those that come with vLLM: nobody here has written it."""
    return not template or "examples" in PurePosixPath(template).parts


def _without_answers(reason: str, *, is_own: bool = False) -> Judgement:
    verdict = judging.worst(["fail" if is_own else "unclear"])
    return judging.Judgement(verdict, {}, (Finding("front end", "", verdict, reason),), {}, {})


def _subject(
    subject: Subject, pairing: ProvedPairing, rendered: ServeCommand, own: ModelFiles, answers: SetupAnswers | None
) -> Subject:
    template = answers.template if answers else None
    return Subject(
        image=subject.image,
        fingerprint=subject.fingerprint,
        model=pairing.model,
        revision=own.commit or pairing.revision,
        template=subjects.of_template(template.encode()) if template else _own_template(own),
        recipe=pairing.recipe.file,
        arguments=subjects.of_arguments("prove", rendered.words, pairing.recipe.env),
    )


def _own_template(own: ModelFiles) -> str | None:
    """The digest of the template that comes with the model."""
    if own.stand_in:
        return None
    template = _template_that_comes_with(own)
    return subjects.of_template(template) if template else None


def _template_that_comes_with(own: ModelFiles) -> bytes | None:
    """The template among a model's files; as JSON where it is a part of tokenizer_config.json."""
    if "chat_template.jinja" in own.files:
        return own.files["chat_template.jinja"]
    try:
        template = json.loads(own.files.get("tokenizer_config.json", b"{}")).get("chat_template")
    except (ValueError, AttributeError):
        return None
    return json.dumps(template, sort_keys=True).encode() if template else None


def _figures(answers: SetupAnswers | None) -> tuple[Figure, ...]:
    if answers is None or answers.answers is None or not answers.memory:
        return ()
    return (Figure("memory", {}, "bytes", "lower", (float(answers.memory),)),)


def _dates(began: datetime) -> tuple[str, ...]:
    """Today as templates write it, and tomorrow, which may have come meanwhile."""
    days = (began, began + timedelta(days=1))
    return tuple(dict.fromkeys(day.strftime(form) for form in reversed(_DATES) for day in days))

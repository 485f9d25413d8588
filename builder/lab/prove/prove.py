"""Proves the template and the parsers of each model that an image serves. The result is evidence about the image."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import BuildFailedError, FileProblemsError, ImageContentsError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.definitions import command
from builder.definitions.command import ServeCommand, option, options
from builder.evidence import standing
from builder.evidence.run_record import Evidence, Figure, Finding, Proof, Subject
from builder.lab.prove import conversations, front_end, judging, properties
from builder.lab.prove.conversations import Conversation
from builder.plan.plan_model import WORKSPACE, Step

if TYPE_CHECKING:
    from builder.building.bake import BakedImage
    from builder.building.request import BuildRequest
    from builder.definitions.mod import Mod
    from builder.definitions.recipe import Recipe
    from builder.evidence.run_record import Verdict
    from builder.lab.prove.front_end import FrontEndRun, ModelFiles, Setup, SetupAnswers
    from builder.lock.model import NumberedImage
    from builder.numbers.workspace import Workspace


NAME = "behaviour"
# Errors of the template or the parsers. Other errors of the front end show nothing about them.
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
    """A model with the recipe that serves it. ``revision`` is the recorded or requested one; None for the newest."""

    model: str
    revision: str | None
    recipe: Recipe


def prove_models(
    workspace: Workspace,
    image: str,
    subject: Subject,
    pairings: Sequence[ProvedPairing],
    references: Callable[[str], judging.Reference | None],
    labels: Mapping[str, str],
) -> tuple[Proof, ...]:
    """Proves ``image`` (its name in the engine) for each pairing, as evidence about ``subject``. ``references`` returns
    the behaviour to compare a model with. Raises ImageStateError if the image is missing, and ImageContentsError if it
    has no Python. Raises FileProblemsError and UsageError if the command of a recipe cannot be rendered."""
    commands = [command.render_command(pairing.recipe, {}) for pairing in pairings]
    options = [served_options(each) for each in commands]
    files = [
        front_end.model_files_of(workspace, pairing.recipe, chosen.model or pairing.model, pairing.revision)
        for pairing, chosen in zip(pairings, options, strict=True)
    ]
    parts = list(zip(pairings, commands, options, files, strict=True))
    setups = [_setup(workspace, *each) for each in parts]
    began, started = datetime.now(UTC), words.now()
    # Today as templates write it, and the days beside it: the proof may run past midnight, and the recipe or the image
    # may set another time zone.
    days = [began + timedelta(days=day) for day in (-1, 0, 1)]
    dates = tuple(dict.fromkeys(day.strftime(form) for form in reversed(_DATES) for day in days))
    run = front_end.ask_front_end(workspace.engine, image, setups, labels, workspace.report)
    proofs = []
    for number, (pairing, rendered, chosen, own) in enumerate(parts):
        reference = references(pairing.model)
        answers = run.setups[number] if run.setups else None
        judgement = _judgement(run, setups[number], answers, chosen, own, reference, dates)
        memory = answers.memory if answers and answers.answers is not None else 0
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
            figures=(Figure("memory", {}, "bytes", "lower", (float(memory),)),) if memory else (),
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
    plugins = (command.option(chosen.argv, name) for name in ("--tool-parser-plugin", "--reasoning-parser-plugin"))
    for path in filter(None, (chosen.template, *plugins)):
        inside = PurePosixPath(WORKSPACE, path)
        file = standing.mounted(workspace.project, pairing.recipe, str(inside), workspace.environment)
        if file and file.is_file():
            mounted[inside] = file.read_bytes()
    questions = conversations.questions(chosen.tool_parser, chosen.reasoning_parser)
    environment = dict(rendered.env)
    if is_spoken(own.files) and (vocabulary := harmony_vocabulary(own.files)):
        mounted[FILE] = vocabulary
        environment |= VARIABLES
    return front_end.Setup(
        model=pairing.model,
        files=own.files,
        options=chosen.argv,
        environment=environment,
        template=chosen.template,
        mounted=mounted,
        questions=prompts(questions) if renders(chosen) else questions,
    )


def _judgement(
    run: FrontEndRun,
    setup: Setup,
    answers: SetupAnswers | None,
    chosen: ServedOptions,
    own: ModelFiles,
    reference: judging.Reference | None,
    dates: Sequence[str],
) -> judging.Judgement:
    if answers is None:
        what = f"vLLM {run.version}" if run.version else "an image without vLLM"
        return _without_answers(f"no proof is possible with {what}: {run.failure}")
    if answers.answers is None:
        refused = _REFUSED_OPTION.search(answers.log)
        is_own = bool(refused or _OWN_FAULT.search(answers.log)) and not chosen.unread
        if refused:
            return _without_answers(f"vLLM refuses the recipe's options: {refused['why']}", is_own=is_own)
        return _without_answers(f"the front end does not start:\n{_end(answers.log)}", is_own=is_own)
    if own.stand_in and not chosen.template:
        return _without_answers(f"the model's own chat template is missing here: {own.stand_in}")
    is_harmony = chosen.tool_parser == "openai"
    if own.stand_in and is_harmony:
        return _without_answers(f"GPT-OSS's own tokens, which the parser requires, are missing here: {own.stand_in}")
    if any(MISSING in each.get("refused", "") for each in answers.answers.values()):
        return _without_answers(
            "GPT-OSS's vocabulary is not in the image, and is not the vocabulary of the model's tokenizer"
        )
    if answers.was_killed:
        return _without_answers("the front end was killed while it answered, probably because memory ran out")
    questions = [each for each in setup.questions if not answers.broke_off or each.name in answers.answers]
    judgement = judging.judge_answers(
        questions,
        answers.answers,
        tokenizer=own.digest,
        style=properties.Style(
            names_roles=conversations.is_known(chosen.tool_parser),
            reasons=conversations.forgets_reasoning(chosen.reasoning_parser),
            call=conversations.call_mark(chosen.tool_parser),
            begins="[gMASK]<sop>" if chosen.tool_parser in {"glm45", "glm47"} else "",
            always_begins=is_harmony,
            source=answers.template or (_template_that_comes_with(own) or b"").decode(errors="replace"),
        ),
        reference=reference,
        dates=dates,
        is_published=_is_published(chosen.template),
    )
    if renders(chosen) and (chosen.tool_parser or chosen.reasoning_parser):
        text = "the parsers are not proven: Mistral's own tokenizer cannot write a turn of the model"
        verdict = judging.worst([judgement.verdict, "unclear"])
        findings = (*judgement.findings, Finding("parsers", "", "unclear", text))
        judgement = replace(judgement, verdict=verdict, findings=findings)
    if not answers.broke_off:
        return judgement
    left = len(setup.questions) - len(questions)
    text = f"{answers.broke_off}; questions that were not asked: {left}\n{_end(answers.log)}"
    return replace(judgement, verdict="fail", findings=(Finding("front end", "", "fail", text), *judgement.findings))


def _end(log: str) -> str:
    return "\n".join(f"  {line}" for line in log.strip().splitlines()[-12:])


def _is_published(template: str) -> bool:
    """True if others wrote the template: the model's own, or an example of vLLM."""
    return not template or "examples" in PurePosixPath(template).parts


def _without_answers(reason: str, *, is_own: bool = False) -> judging.Judgement:
    verdict: Verdict = "fail" if is_own else "unclear"
    return judging.Judgement(verdict, {}, (Finding("front end", "", verdict, reason),), {}, {})


def _subject(
    subject: Subject, pairing: ProvedPairing, rendered: ServeCommand, own: ModelFiles, answers: SetupAnswers | None
) -> Subject:
    template = answers.template.encode() if answers and answers.template else None
    if template is None and not own.stand_in:
        template = _template_that_comes_with(own)
    return replace(
        subject,
        model=pairing.model,
        revision=own.commit or pairing.revision,
        template=words.sha256_of(template) if template else None,
        recipe=pairing.recipe.file,
        arguments=standing.of_arguments("prove", rendered.words, pairing.recipe.env),
    )


def _template_that_comes_with(own: ModelFiles) -> bytes | None:
    if "chat_template.jinja" in own.files:
        return own.files["chat_template.jinja"]
    try:
        template = json.loads(own.files.get("tokenizer_config.json", b"{}")).get("chat_template")
    except (ValueError, AttributeError):
        return None
    return json.dumps(template, sort_keys=True).encode() if template else None


# Words in a mod that may change templates or parsers; any script may do so.
_OF_BEHAVIOUR = re.compile(r"jinja|template|parser|reasoning|tokenizer", re.IGNORECASE)


def of_build(
    workspace: Workspace, baked: BakedImage, record: NumberedImage, request: BuildRequest
) -> tuple[Proof, ...]:
    """Proves a verified image that has no number yet. Returns no proof if the image cannot run here, or if no proof is
    required and either nothing can differ or no earlier number was proven. An impossible proof does not end the
    build."""
    planned = baked.planned
    plan, recipe = planned.plan, planned.recipe
    can_run = plan.definition.platform == baked.host_platform and "vllm" in plan.versions
    if not request.prove or request.candidate or recipe is None or recipe.model is None or not can_run:
        return ()
    from builder.building import commit

    find = functools.partial(judging.find_reference, workspace.project, planned.lock, plan.repository, None)
    is_required = recipe.model in commit.models(workspace.project, planned)
    is_other = may_differ(planned.comparison.before, plan.steps, plan.mods)
    if not is_required and not (is_other and find(recipe.model)):
        return ()
    pairing = ProvedPairing(recipe.model, planned.revisions.get(recipe.model) or recipe.revision, recipe)
    subject = Subject(plan.repository, record.fingerprint)
    try:
        return prove_models(workspace, baked.work.tag, subject, (pairing,), find, baked.work.labels)
    except (BuildFailedError, FileProblemsError, ImageContentsError, UsageError) as error:
        workspace.report(Message(f"not proven: {error.message}"))
        return ()


def may_differ(before: Sequence[Step], steps: Sequence[Step], mods: Sequence[Mod]) -> bool:
    """True if an image of ``steps`` may behave differently from an image of the steps ``before``: vLLM or anything
    below it changed, or a mod that touches templates or parsers."""
    earlier = {step.name: step for step in before}
    names = {step.name for step in steps}
    others = [step.name for step in steps if earlier.get(step.name) != step]
    others += [name for name in earlier if name not in names]
    # Mods that do not touch templates or parsers are harmless; any other step may change the behaviour.
    harmless = {f"mod {mod.name}" for mod in mods}
    for mod in mods:
        if any(_OF_BEHAVIOUR.search(f"{file.path}\n{file.content.decode('utf-8', 'replace')}") for file in mod.files):
            harmless.remove(f"mod {mod.name}")
    return not before or not harmless.issuperset(others)


# The options of a serve command that the front end accepts: template, parsers, tokenizer.

_WITH_VALUE = frozenset(
    {
        *("chat-template", "chat-template-content-format", "default-chat-template-kwargs"),
        *("tool-call-parser", "tool-parser-plugin", "tool-strict-level"),
        *("reasoning-parser", "reasoning-parser-plugin", "reasoning-config"),
        *("tokenizer", "tokenizer-mode", "hf-overrides", "max-model-len"),
    }
)
_SWITCHES = frozenset({"enable-auto-tool-choice", "exclude-tools-when-tool-choice-none", "trust-remote-code"})


@dataclass(frozen=True)
class ServedOptions:
    """The options of the front end. ``unread`` names the options with values that only the script's shell knows."""

    model: str
    argv: tuple[str, ...]
    template: str
    tool_parser: str
    reasoning_parser: str
    unread: tuple[str, ...]


def served_options(command: ServeCommand) -> ServedOptions:
    named = [(used.option.lstrip("-").replace("_", "-"), used.value) for used in options(command.words)]
    with_value = [(name, value) for name, value in named if name in _WITH_VALUE and value is not None]
    of_shell = [name for name, value in with_value if command.is_script and ("$" in value or "`" in value)]
    unread = tuple(dict.fromkeys(of_shell))
    argv = [part for name, value in with_value if name not in unread for part in (f"--{name}", value)]
    argv += [f"--{name}" for name, _ in named if name in _SWITCHES]
    calls_tools = "--enable-auto-tool-choice" in argv
    return ServedOptions(
        model=command.model or "",
        argv=tuple(argv),
        template=option(command.words, "--chat-template") or "",
        tool_parser=option(command.words, "--tool-call-parser") or "" if calls_tools else "",
        reasoning_parser=option(command.words, "--reasoning-parser") or "",
        unread=unread,
    )


# vLLM writes and reads GPT-OSS's own format, Harmony, with a vocabulary. openai-harmony downloads the vocabulary at
# first use, which fails in a container without a network. oss-harmony, which vLLM uses from 0.32 on, contains it. Both
# identify the file by its digest. The model's tokenizer.json has the same tokens with the same ranks, so the file is
# made from it.

# https://github.com/openai/harmony, src/tiktoken_ext/public_encodings.rs: the file, its digest, and the variable with
# its folder.
SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
FILE = PurePosixPath("/tmp/builder-encodings/o200k_base.tiktoken")  # noqa: S108  # of the container
VARIABLES = {"TIKTOKEN_ENCODINGS_BASE": str(FILE.parent)}
MISSING = "loading vocab file"
"""The error of openai-harmony contains this text if the vocabulary is not available."""

_MODEL_TYPE = "gpt_oss"


def is_spoken(files: Mapping[str, bytes]) -> bool:
    """True if vLLM uses Harmony instead of a chat template. The type in the model's config decides this."""
    try:
        return bool(json.loads(files.get("config.json", b"{}")).get("model_type") == _MODEL_TYPE)
    except (ValueError, AttributeError):
        return False


def harmony_vocabulary(files: Mapping[str, bytes]) -> bytes | None:
    """The content of `FILE`, made from a model's tokenizer; None if the tokenizer has a different vocabulary."""
    try:
        tokens = json.loads(files["tokenizer.json"])["model"]["vocab"]
        ranked = sorted(tokens.items(), key=lambda item: int(item[1]))
        values = front_end.byte_values()
        written = ((bytes(values[character] for character in token), rank) for token, rank in ranked)
        lines = [b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in written]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    content = b"".join(lines)
    return content if hashlib.sha256(content).hexdigest() == SHA256 else None


# Mistral's own tokenizers render without a template. With them, vLLM refuses all template options, and conversations
# that end with the model. When vLLM parses without a server, it decodes each token alone, but a character may have
# several tokens (vLLM 0.32, vllm/tokenizers/mistral.py, convert_tokens_to_string). So only prompts are asked for.


def renders(options: ServedOptions) -> bool:
    """True if a recipe requests Mistral's own tokenizer (``--tokenizer-mode mistral``,
    https://docs.vllm.ai/en/stable/configuration/engine_args)."""
    return command.option(options.argv, "--tokenizer-mode") == "mistral"


def prompts(questions: Sequence[conversations.Question]) -> tuple[conversations.Question, ...]:
    return tuple(
        question
        for question in questions
        if question.kind == "prompt" and isinstance(question.subject, Conversation) and not question.subject.options
    )

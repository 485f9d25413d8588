"""The report: a page that shows which image serves which model.

Its data come first, from images.lock, build directories, evidence, and their recipes; then the page. The template uses
these values, and report.json contains them under the same names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from builder.base import words
from builder.base.errors import BuilderError, FileProblemsError, SourceError, UnsafePathError
from builder.base.events import Message, Report
from builder.base.values import dataclass
from builder.evidence import requirements, standing
from builder.evidence.run_record import figure_document
from builder.lab import changes
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.serving import advice
from builder.serving.selection import select_image
from builder.sources import mirror

if TYPE_CHECKING:
    from builder.base.project import Project


Concern = Literal["failed", "bad", "missing", "changed", "stale", "unproven", "advisory"]
_LISTED = 5
_LISTED_COMMITS = 20
_INCOMPLETE = "a build directory is missing, or an image was adopted, so only versions and mods can be compared"
_FULL_COMMIT = re.compile("[0-9a-f]{40}")
_GITHUB = re.compile(r"https://github\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+?(?:\.git)?/?")


class Part(SimpleNamespace):
    """A part of the page. Its attributes are its fields in report.json."""


EvidenceOf: TypeAlias = Callable[
    ["Project", Lock, Collection[ImageName], Mapping[str, str]], Mapping[ImageName, standing.ImageEvidence]
]
"""Returns the evidence of these images."""


def collect_page(
    project: Project, environ: Mapping[str, str], report: Report, evidence_of: EvidenceOf, *, full: bool = False
) -> Part:
    """Reads the data of the page. Only a ``full`` page has paths, names of machines and notes. Upstream commits come
    from the project's mirrors: nothing is fetched. Raises LockError if images.lock is lost or damaged."""
    lock = lock_file.read_project_lock(project)
    every = (ImageName(name, number) for name, repository in lock.images.items() for number in repository.numbers)
    names = sorted(every, key=lambda name: (name.repository, -name.number))
    report(Message(f"reading the runs of {words.counted(len(names), 'image')}"))
    recorded = evidence_of(project, lock, names, environ)
    evidence = {name: recorded.get(name, standing.ImageEvidence()) for name in names}
    table = standing.build_matrix(names, standing.models_of(lock, evidence.values()), evidence)
    commits = functools.cache(functools.partial(_commits, project))
    sources = _Sources(project, lock, evidence, Disclosure(table.models, lock.images, full=full), commits)
    if any(project.mirrors.glob("*.git")):
        report(Message("reading upstream's commits from the local mirrors"))
    images = sources.images(names)
    models = tuple(sources.model(model) for model in sorted(lock.models))
    moments = [sources.record(name).built for name in names]
    moments += [each.run.started for image in evidence.values() for each in image.last]
    return Part(
        as_of=max(moments, default=""),
        concerns=sources.concerns(models, environ),
        models=models,
        table=_table(table, sources.disclosure),
        images=images,
        full=full,
    )


def _table(table: standing.Matrix, disclosure: Disclosure) -> Part:
    """The table, with only the cells that were tried."""
    cells = []
    for cell in table.cells:
        if run := cell.run:
            image, model = disclosure.name(str(cell.image)), disclosure.name(cell.model)
            file = run.rpartition("/")[2]
            cells.append(Part(image=image, model=model, proof=cell.proof, word=cell.word, run=file))
    images = tuple(disclosure.name(str(image)) for image in table.images)
    models = tuple(map(disclosure.name, table.models))
    return Part(images=images, models=models, proofs=table.proofs, cells=tuple(cells))


@dataclass(frozen=True)
class _Sources:
    project: Project
    lock: Lock
    evidence: Mapping[ImageName, standing.ImageEvidence]
    disclosure: Disclosure
    commits: Callable[[str, str, str], mirror.CommitRange | None]

    def record(self, name: ImageName) -> NumberedImage:
        return self.lock.images[name.repository].numbers[name.number]

    # The models of the page: the image that serves each model now, and its history of numbers, pairings and runs.

    def model(self, model: str) -> Part:
        shown = self.disclosure
        paired = self.lock.models[model]
        pairing = paired.pairing
        stands = self.evidence[pairing.image].with_model(model)
        proof, why = (stands.run, stands.why) if stands else (None, "")
        return Part(
            model=shown.name(model),
            image=shown.name(str(pairing.image)),
            since=max(self.record(each.image).built for each in (pairing, *paired.previous))[:10],
            revision=pairing.revision,
            recipe=PurePosixPath(pairing.recipe).stem if pairing.recipe else None,
            template=proof.subject.template if proof else None,
            mods=tuple(self.record(pairing.image).mods),
            status=pairing.status,
            note=shown.note(pairing.note),
            standing=stands.standing if stands else "unproven",
            why=shown.note(why) if proof and why == proof.accepted else why,
            history=self._history(model),
        )

    def _history(self, model: str) -> tuple[Part, ...]:
        """The images that the model was paired with or run with, the oldest first."""
        paired = self.lock.models[model]
        order = [*reversed(paired.previous), paired.pairing]
        places = {pairing.image: place for place, pairing in enumerate(order, 1)}
        runs = {
            name: tuple(self._run(judged) for judged in each.last if judged.run.subject.model == model)
            for name, each in self.evidence.items()
        }
        names = (name for name in self.evidence if name in places or runs[name])
        steps = []
        for name in sorted(names, key=lambda name: (self.record(name).built, name)):
            image, place = self.record(name), places.get(name, 0)
            pairing = order[place - 1] if place else Pairing(name)
            origin = order[place - 2].image if place > 1 else None
            steps.append(
                Part(
                    image=self.disclosure.name(str(name)),
                    built=image.built,
                    vllm=image.versions["vllm"].version if "vllm" in image.versions else "",
                    event=_event(name, origin) if place else "",
                    origin=self.disclosure.name(str(origin)) if origin else "",
                    place=place,
                    is_now=name == paired.pairing.image,
                    status=pairing.status,
                    note=self.disclosure.note(pairing.note),
                    standing=self.evidence[name].standing_with(model),
                    runs=runs[name],
                )
            )
        return tuple(steps)

    def _run(self, judged: standing.JudgedRun) -> Part:
        run, machine = judged.run, judged.run.subject.machine
        # Two runs can be compared only if all of these are the same, as in `run_record.unlike`.
        chip = (machine.gpu, machine.gpus, machine.platform, machine.cpu) if machine else None
        protocol = (run.kind, run.name, run.set, run.version, chip, dict(run.sampling), dict(run.subject.overrides))
        text = json.dumps(protocol, sort_keys=True)
        return Part(
            **{key: getattr(run, key) for key in ("kind", "name", "verdict", "started", "seconds", "version")},
            word=standing.word_of(judged),
            stale=judged.stale,
            accepted=self.disclosure.note(run.accepted),
            protocol=hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12],
            machine=(machine.gpus_text or machine.cpu) if machine else "",
            run=run.file,
            reference=run.sampling.get("reference", ""),
            figures=tuple(
                Part(**{key: value for key, value in figure_document(figure).items() if key != "values"})
                for figure in run.figures
            ),
        )

    # The images of the page: their contents, and the changes since the previous number.

    def images(self, names: list[ImageName]) -> tuple[Part, ...]:
        sides: dict[ImageName, changes.ComparedImage | str] = {}
        for name in names:
            try:
                sides[name] = changes.compared_image(self.project, self.lock, name)[0]
            except (UnsafePathError, FileProblemsError) as error:
                sides[name] = error.message
        return tuple(self._image(name, sides) for name in names)

    def _image(self, name: ImageName, sides: Mapping[ImageName, changes.ComparedImage | str]) -> Part:
        shown = self.disclosure
        record = self.record(name)
        side = sides[name]
        own = changes.contents_of(self.lock, side) if not isinstance(side, str) else None
        return Part(
            image=shown.name(str(name)),
            repository=shown.name(name.repository),
            number=name.number,
            **{key: getattr(record, key) for key in ("built", "pinned", "pruned", "definition", "platform", "size")},
            current=self.lock.images[name.repository].current == name.number,
            adopted=shown.name(record.adopted.image) if record.adopted else None,
            status=record.status,
            note=shown.note(record.note),
            standing=self.evidence[name].standing,
            versions={source: version.text for source, version in sorted(record.versions.items(), reverse=True)},
            base=shown.name(own.base) if own else "",
            mods=tuple(record.mods),
            packages=(len(own.packages) or None) if own else None,
            models=tuple(map(shown.name, self.lock.models_on(name))),
            change=self._change(name, sides),
        )

    def _change(self, name: ImageName, sides: Mapping[ImageName, changes.ComparedImage | str]) -> Part | None:
        """The changes since the previous number; None for the first number."""
        numbers = self.lock.images[name.repository].numbers
        earlier = [number for number in numbers if number < name.number]
        if not earlier:
            return None
        origin = ImageName(name.repository, max(earlier))
        since = self.disclosure.name(str(origin))
        change = Part(since=since, sources=(), packages=(), mods=(), others=(), unknown="")
        old, new = sides[origin], sides[name]
        if isinstance(old, str) or isinstance(new, str):
            fault = str(old if isinstance(old, str) else new)
            change.unknown = self.disclosure.note(fault) or "a build directory cannot be read"
            return change
        if changes.are_same(old, new):
            return change
        differing = changes.changes_between(*changes.contents_of_both(self.lock, old, new))
        then, now = old.image.mods, new.image.mods
        others = [f"{each.patch} of {each.source} {each.kind}" for each in differing.patches]
        if differing.base:
            before, after = map(self._base, (differing.base.before, differing.base.after))
            others.insert(0, f"base image {before} → {after}")
        if differing.build_packages:
            others.append(f"{words.counted(len(differing.build_packages), 'build package')} changed")
        change.sources = tuple(map(self._source, differing.sources))
        change.packages = tuple(
            f"{each.name} {each.after}: same version, different files"
            if each.kind == "other files"
            else f"{each.name} {each.before or 'new'} → {each.after or 'gone'}"
            for each in differing.packages
        )
        change.mods = tuple(
            f"{mod} {changes.kind_of(then.get(mod), now.get(mod))}"
            for mod in dict.fromkeys([*now, *then])
            if then.get(mod) != now.get(mod)
        )
        change.others = tuple(others)
        change.unknown = "" if old.directory and new.directory else _INCOMPLETE
        return change

    def _base(self, text: str | None) -> str:
        image, _, digest = (text or "none").partition(" ")
        return f"{self.disclosure.name(image)} {words.short_digest(digest)}".strip()

    def _source(self, change: changes.SourceChange) -> Part:
        old, new = (version.commit or "" if version else "" for version in (change.before, change.after))
        is_exact = old != new and bool(_FULL_COMMIT.fullmatch(old) and _FULL_COMMIT.fullmatch(new))
        between = self.commits(change.git, old, new) if is_exact and change.git else None
        address = change.git.removesuffix("/").removesuffix(".git") if _GITHUB.fullmatch(change.git) else ""
        return Part(
            name=change.name,
            before=change.before.text if change.before else "",
            after=change.after.text if change.after else "",
            total=between.total if between else None,
            commits=[Part(commit=each.commit, title=each.title) for each in (between.commits if between else ())],
            compare=f"{address}/compare/{old}...{new}" if address and is_exact else "",
        )

    # The concerns: everything about the serving images that is failed, bad, missing, changed, stale or unproven.

    def concerns(self, models: tuple[Part, ...], environ: Mapping[str, str]) -> tuple[Part, ...]:
        """All concerns, the most serious first. ``models`` are the models of the lock, sorted by name."""
        every: list[Part] = []
        for model, shown_model in zip(sorted(self.lock.models), models, strict=True):
            every += self._of_pairing(model, shown_model)
            every += self._of_requirements(model, environ)
            every += self._of_advisories(model)
        for repository, record in self.lock.images.items():
            numbers = (number for number in sorted(record.numbers, reverse=True) if not record.numbers[number].pruned)
            if gone := [str(number) for number in numbers if not self._has_directory(repository, number)]:
                more = f" and {len(gone) - _LISTED} more" if gone[_LISTED:] else ""
                numbers_text = f"{', '.join(gone[:_LISTED])}{more}"
                text = f"cannot be built again, because the build directory is missing: {numbers_text}"
                every.append(self._concern("missing", repository, "", text, "builder verify"))
        for name, each in self.evidence.items():
            problems = (self.disclosure.note(str(problem)) or "a run that cannot be read" for problem in each.problems)
            for problem in dict.fromkeys(problems):
                every.append(self._concern("missing", str(name), name, f"not counted: {problem}", "builder verify"))
        return tuple(sorted(every, key=lambda each: get_args(Concern).index(each.concern)))

    def _concern(self, concern: Concern, subject: str, image: ImageName | str, text: str, command: str) -> Part:
        where = {"subject": self.disclosure.name(subject), "image": self.disclosure.name(str(image))}
        return Part(concern=concern, **where, text=text, command=self.disclosure.command(command))

    def _has_directory(self, repository: str, number: int) -> bool:
        with suppress(UnsafePathError):
            return self.project.build_directory(repository, number).is_dir()
        return False

    def _of_pairing(self, name: str, model: Part) -> Iterator[Part]:
        paired = self.lock.models[name]
        image, previous, record = paired.pairing.image, paired.previous, self.record(paired.pairing.image)
        back = f"builder rollback {words.shell_word(name)}" if previous else ""
        if "bad" in {model.status, record.status}:
            note = self.disclosure.note(paired.pairing.note or record.note)
            yield self._concern("bad", name, image, f"marked bad{f': {note}' if note else ''}", back)
        if record.pruned:
            text = f"the image that serves the model was pruned on {record.pruned[:10]}"
            yield self._concern("missing", name, image, text, "" if record.adopted else f"builder rebuild {image}")
        prove = f"builder prove {image} {words.shell_word(name)}"
        texts = {
            "failed": ("the last proof failed", back or prove),
            "changed": ("the last proof found a change from the previous number", f"{prove} --accept"),
            "stale": ("", prove),
            "unproven": ("never proven on this image", prove),
        }
        if model.standing in texts:
            text, command = texts[model.standing]
            yield self._concern(model.standing, name, image, model.why or text, command)
        if previous and previous[0].note.startswith("put back on "):
            text = self.disclosure.note(previous[0].note) or "the model was put back on the previous image"
            yield self._concern("failed", name, previous[0].image, text, f"builder diff {image} {previous[0].image}")
        for run in now_of(model).runs:
            if run.kind != "prove" and run.word in {"failed", "stale"}:
                text = f"{run.kind} {run.name}: {'; '.join(run.stale) or 'failed'}"
                yield self._concern(run.word, name, image, text, _command(run, words.shell_word(name), str(image)))

    def _of_requirements(self, name: str, environ: Mapping[str, str]) -> Iterator[Part]:
        image = self.lock.models[name].pairing.image
        try:
            for each in requirements.missing(self.project, self.lock, image, name, environ=environ):
                what = self.disclosure.note(str(each)) or f"{each.kind} {each.name}".strip()
                concern: Concern = "failed" if each.failed else "missing"
                command = requirements.missing_command(self.project, self.lock, each, image, name)
                yield self._concern(concern, name, image, f"required {what}", command)
        except (FileProblemsError, UnsafePathError) as error:
            first = self.disclosure.note(error.message.splitlines()[0])
            text = f"the model's requirements cannot be read{f': {first}' if first else ''}"
            yield self._concern("missing", name, image, text, "builder recipes check")

    def _of_advisories(self, name: str) -> Iterator[Part]:
        with suppress(BuilderError):  # a recipe with an error is reported elsewhere
            selection = select_image(self.project, self.lock, name)
            for each in advice.of_selection(self.project, selection):
                shows = f"builder advisories show {each.message.partition(':')[0]}"
                yield self._concern("advisory", name, selection.name, f"{each.message}; {each.remedy}", shows)


def _command(run: Part, model: str, image: str) -> str:
    """The command that repeats a run; empty for a comparison of other weights or options, which a run does not name."""
    if run.kind == "same":
        is_image = run.reference.rpartition(":")[2].isdecimal() and run.reference != image
        return f"builder compare {run.reference} {image} {words.shell_word(model)}" if is_image else ""
    return f"builder {run.kind} {words.shell_word(model)} {'--profile ' if run.kind == 'bench' else ''}{run.name}"


def _event(name: ImageName, origin: ImageName | None) -> str:
    """The way from the previous image to this one in the order of pairings. A rollback swaps two pairings."""
    if origin is None:
        return "paired"
    if origin.repository != name.repository:
        return "moved"
    return "promoted" if name.number > origin.number else "rolled back"


def now_of(model: Part) -> Part:
    step: Part = next(step for step in model.history if step.is_now)
    return step


def _commits(project: Project, git: str, old: str, new: str) -> mirror.CommitRange | None:
    with suppress(SourceError):
        return mirror.commits_present(mirror.locate(project.mirrors, git), old, new, _LISTED_COMMITS)
    return None


class Disclosure:
    """The notes and names that a page may show: only a ``full`` page has notes, paths and names of machines. All
    ``models`` and all ``repositories`` get different names."""

    def __init__(self, models: Iterable[str] = (), repositories: Iterable[str] = (), *, full: bool = False) -> None:
        self._full = full
        self._names = {} if full else {**_distinct(repositories, _without_host), **_distinct(models, _without_folders)}

    def note(self, text: str) -> str:
        """A text that a user wrote, or that may name a file or a machine; only for a full page."""
        return text if self._full else ""

    def name(self, text: str) -> str:
        """The name of a model, a repository or an image, without leading folders or the host of a registry."""
        if self._full or text in self._names:
            return self._names.get(text, text)
        repository, colon, rest = text.rpartition(":")
        return f"{self._names[repository]}{colon}{rest}" if repository in self._names else _without_host(text)

    def command(self, text: str) -> str:
        """A command; empty if it contains a name that the page must not show."""
        hidden = (name for name, shown in self._names.items() if name != shown)
        return "" if any(name in text or words.shell_word(name) in text for name in hidden) else text


def _distinct(names: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """The short name of each. If several are equal, all except the first get a number."""
    shown: dict[str, str] = {}
    for name in sorted(names):
        alike = sum(short(name) == short(other) for other in shown)
        shown[name] = f"{short(name)} ({alike + 1})" if alike else short(name)
    return shown


def _without_folders(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", "~", ".")) else model


def _without_host(image: str) -> str:
    host, slash, rest = image.partition("/")
    return rest if slash and (":" in host or "." in host or host == "localhost") else image


# The page is one HTML file without scripts. It fetches nothing.
#
# The template engine escapes every text. The page stays below a megabyte for 200 numbers and 20 models: long histories
# and lists are shortened, with a note. report.json contains all data.

_HERE = Path(__file__).parent
_ROWS = 400  # of all histories together
_FEWEST_ROWS, _MOST_ROWS = 8, 60  # of one history
_SHOWN_COMMITS, _LISTED_PACKAGES = 5, 12
_LONGEST_TEXT = 400
_MARKS = {"proven": "p", "changed": "c", "failed": "f", "stale": "s", "unclear": "u", "never tried": ""}


def render_page(page: Part) -> str:
    from markupsafe import Markup  # of the template engine

    css = (_HERE / "report.css").read_text(encoding="utf-8")
    rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _ROWS // max(1, len(page.models))))
    text = (
        _environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            css=Markup(css),  # noqa: S704  # the style sheet of this program
            policy=policy(css),
            anchors={image.image: f"i{place}" for place, image in enumerate(page.images)},
            model_anchors={model.model: f"m{place}" for place, model in enumerate(page.models)},
            views={model.model: view_of(model, rows) for model in page.models},
            cells=_cells(page.table),
            listed_commits=_SHOWN_COMMITS,
            listed_packages=_LISTED_PACKAGES,
        )
    )
    return "\n".join(line for line in text.split("\n") if line.strip()) + "\n"


def policy(css: str) -> str:
    """The content security policy: it allows only this style sheet."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def plain(text: object, longest: int = _LONGEST_TEXT) -> str:
    """Untrusted text for the page: control and direction characters are escaped, and long text is cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FileSystemLoader(_HERE),
        finalize=lambda value: plain(value, 1_000_000) if type(value) is str and not value.isprintable() else value,
    )
    environment.filters |= {
        "plain": plain,
        "short": words.short_digest,
        "bytes": words.size_text,
        "counted": words.counted,
        "moment": lambda text: text[:16].replace("T", " ") + " UTC",
        "mean": mean_text,
        "spread": spread_text,
        "label": label_of,
    }
    return environment


def _cells(table: Part) -> dict[tuple[str, str], Part]:
    """The cells by image and model: the word of the last proof, and the other runs."""
    tried: dict[tuple[str, str], list[Part]] = {}
    for cell in table.cells:
        tried.setdefault((cell.image, cell.model), []).append(cell)
    shown = {}
    for pair, cells in tried.items():
        proof = next((cell for cell in cells if cell.proof == "prove"), None)
        word = proof.word if proof else "never tried"
        beside = []
        for cell in (each for each in cells if each is not proof):
            name = cell.proof.partition(" ")[2] or cell.proof  # a comparison has no other name
            beside.append(f"+ {name}" if cell.word == "proven" else f"{name}: {cell.word}")
        digits = ", ".join(cell.run.removesuffix(".json").rpartition("-")[2] for cell in cells)
        shown[pair] = Part(word=word.removesuffix(" tried"), mark=_MARKS[word], beside=beside, title=digits)
    return shown


# A model with its history: the figures that are shown, and their texts.

Key: TypeAlias = "tuple[object, ...]"  # the name of a figure, and its conditions

_MOST_DEPTHS = 4
_TITLES = {
    "tg": "decode",
    "pp": "prefill",
    "acceptance": "of the drafts accepted",
    "memory_floor": "of memory left",
    "startup": "to the first answer",
}


def view_of(model: Part, most: int) -> Part:
    """The view of a model on the page: at most ``most`` of its newest steps, always including ``now``. ``rows`` are the
    figures of the steps under ``columns``, the newest first. ``tiles`` are all figures of the present step;
    ``headline`` is the decode speed at the smallest depth. ``profile`` is the bench profile of the figures."""
    now, steps = now_of(model), model.history[-most:]
    if now not in steps:
        steps = (now, *steps[1:])
    profile, runs = benchmarks(steps)
    _, (current,) = benchmarks((now,))
    speeds = [figure_at(current, key) for key in keys_of([current], "tg")]
    stale = ", stale" if current and current.stale else ""
    keys = [key for name in _TITLES for key in keys_of(runs, name) if name != "startup"]
    series = [[figure_at(run, key) for run in runs] for key in keys]
    columns = [_column(next(figure for figure in figures if figure)) for figures in series]
    tops = [max(figure.mean for figure in figures if figure) for figures in series]
    newest = next((run.protocol for run in reversed(runs) if run), "")
    rows = [
        (step, [_cell(figures[place], run, newest, top) for figures, top in zip(series, tops, strict=True)])
        for place, (step, run) in enumerate(zip(steps, runs, strict=True))
    ]
    return Part(
        now=now,
        headline=next((f"{mean_text(figure)}{stale}" for figure in speeds if figure), ""),
        tiles=list(_tiles(now, current)),
        columns=columns,
        rows=rows[::-1],
        profile=profile,
    )


def _column(figure: Part) -> str:
    return label_of(figure) + (f", {figure.unit}" if figure.unit not in {"bytes", "ratio"} else "")


def _cell(figure: Part | None, run: Part | None, newest: str, most: float) -> Part:
    """A figure of a run as text, and its mean as a bar relative to the largest mean in its column. A run that cannot be
    compared with the ``newest``, because of another machine or tool, has no bar."""
    if figure is None or run is None:
        return Part(text="-", mean=None, most=most)
    parts = [words.amount_text(figure.mean, figure.unit), spread_text(figure), "stale" if run.stale else ""]
    is_alike = run.protocol == newest
    parts.append("" if is_alike else "other conditions")
    return Part(text=" ".join(filter(None, parts)), mean=figure.mean if is_alike else None, most=most)


def benchmarks(steps: Sequence[Part]) -> tuple[str, list[Part | None]]:
    """The profile that measured most of these steps, and the benchmark with it for each step."""
    own = [[run for run in step.runs if run.kind == "bench"] for step in steps]
    counts = Counter(run.name for runs in own for run in runs)
    profile = min(counts, key=lambda name: (-counts[name], name), default="")
    return profile, [next((run for run in runs if run.name == profile), None) for runs in own]


def keys_of(runs: Sequence[Part | None], name: str) -> tuple[Key, ...]:
    """The conditions under which the figure ``name`` is shown: one per depth, with the smallest number of requests."""
    figures = [figure for run in runs if run for figure in run.figures if figure.name == name and figure.n]
    by_depth: dict[float, Key] = {}
    for figure in sorted(figures, key=lambda each: (_number(each.at.get("concurrency", 1)), repr(key_of(each)))):
        by_depth.setdefault(_number(figure.at.get("depth", 0)), key_of(figure))
    return tuple(by_depth[depth] for depth in sorted(by_depth))[:_MOST_DEPTHS]


def figure_at(run: Part | None, key: Key) -> Part | None:
    return next((figure for figure in run.figures if figure.n and key_of(figure) == key), None) if run else None


def key_of(figure: Part) -> Key:
    return (figure.name, *sorted(figure.at.items()))


def _tiles(now: Part, current: Part | None) -> Iterator[Part]:
    """All figures of the image that serves now. The main figures are the columns of the history, without prefill, and
    the start-up time."""
    main = {key for name in _TITLES for key in keys_of([current], name) if name != "pp"}
    measured = ((run, figure) for run in now.runs if run.kind != "prove" for figure in run.figures)
    for run, figure in ((run, figure) for run, figure in measured if figure.n):
        depth = figure.at.get("depth")
        title = _TITLES.get(figure.name, figure.name) + ("" if depth is None else f" at depth {depth_text(depth)}")
        is_main = run is current and key_of(figure) in main
        yield Part(figure=figure, run=run, title=title, is_main=is_main)


def label_of(figure: Part) -> str:
    at = {name: value for name, value in figure.at.items() if (name, value) != ("concurrency", 1)}
    parts = [f"at depth {at.pop('depth')}"] if "depth" in at else []
    return " ".join([figure.name, *parts, *(f"{name} {value}" for name, value in at.items())])


def depth_text(depth: object) -> str:
    """A depth in units of 1024 tokens (``32k``), or in tokens if it is small."""
    tokens = _number(depth)
    return f"{tokens / 1024:.0f}k" if tokens >= 1024 else f"{tokens:.0f}"


def mean_text(figure: Part) -> str:
    unit = "" if figure.unit in {"bytes", "ratio"} else f" {figure.unit}"
    return f"{words.amount_text(figure.mean, figure.unit)}{unit}" if figure.n else "not measured"


def spread_text(figure: Part) -> str:
    return f"± {words.amount_text(figure.std, figure.unit)}" if figure.n > 1 else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0

"""The beginning of a bisection: the two ends, the numbers between them that are there, and the judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import timestamp
from builder.bisecting.session import Bisection, Judge
from builder.commands.shared import beside
from builder.definitions import image, target
from builder.definitions.recipes import finding
from builder.engine import images
from builder.errors import ConflictError, ImageStateError, NothingToDoError, UsageError
from builder.lock import reading
from builder.lock.model import ImageName
from builder.measuring import probing
from builder.serving import image_selection
from builder.sources.git import project_history

if TYPE_CHECKING:
    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import Lock, Pairing, Repository
    from builder.project import Project
    from builder.workspace import Workspace


@dataclass(frozen=True)
class BisectRequest:
    """A bisection as typed: ``text`` is a model, a recipe or a definition; the ends are numbers, None where the lock
    tells them."""

    text: str
    judge: Judge
    good: int | None = None
    bad: int | None = None
    find_fix: bool = False


def of_request(workspace: Workspace, request: BisectRequest) -> Bisection:
    """The bisection that is asked for. Raises UsageError where it names nothing, ImageStateError where an end is not in
    the engine, NothingToDoError where there is no number to begin from."""
    project, lock = workspace.project, reading.of(workspace.project)
    recipe, repository_name = _subject(project, lock, request.text)
    repository = lock.images.get(repository_name)
    if repository is None or not repository.numbers:
        raise NothingToDoError(
            f"{repository_name} has no numbered image", hint="`builder build` makes one: a bisection compares two"
        )
    paired = lock.models.get((recipe.model if recipe else None) or "")
    every = (paired.pairing, *paired.previous) if paired else ()
    pairings = tuple(pairing for pairing in every if pairing.image.repository == repository_name)
    ends = _ends(repository_name, repository, pairings, request)
    _require_judge(project, request.judge, recipe)
    numbers = _numbers(workspace, repository_name, repository, ends)
    return Bisection(
        target=request.text,
        repository=repository_name,
        platform=repository.numbers[ends[0]].platform,
        numbers=numbers,
        judge=request.judge,
        started=timestamp.now(),
        find_fix=request.find_fix,
        recipe=recipe.file if recipe else "",
        recipe_before=_recipe_before(project, recipe, repository, ends),
        served=beside.server_of(workspace, recipe) is not None,
    )


def again(workspace: Workspace, bisection: Bisection) -> Bisection:
    """A bisection of the journal with what the journal does not hold: its recipe and platform, by the name that was
    typed. Raises what `of_request` does, ConflictError where the name means other images now."""
    project, lock = workspace.project, reading.of(workspace.project)
    recipe, repository_name = _subject(project, lock, bisection.target)
    repository = lock.images.get(repository_name)
    is_same = repository_name == bisection.repository
    if repository is None or not is_same or not {*bisection.numbers} <= repository.numbers.keys():
        raise ConflictError(
            f"the bisection of {bisection.target} looks at images that {bisection.target} does not name any more",
            hint="`builder bisect stop` ends it",
        )
    ends = (bisection.numbers[0], bisection.numbers[-1])
    before = "" if bisection.present_recipe else _recipe_before(project, recipe, repository, ends)
    platform = repository.numbers[ends[0]].platform
    return replace(bisection, platform=platform, recipe=recipe.file if recipe else "", recipe_before=before)


def _subject(project: Project, lock: Lock, text: str) -> tuple[Recipe | None, str]:
    """The recipe that serves ``text``, None for a definition, and its repository."""
    if text in lock.models:
        paired = lock.models[text].pairing
        path = finding.recorded(project, paired.recipe)
        recipe = image_selection.select(project, lock, text).recipe if path else None
        return recipe, paired.image.repository
    named = target.find(project, text, lock.models)
    if named.recipe is None:
        return None, image.repository_of(project, named.definition or "")
    if not finding.is_in_recipes(project, project.root / named.recipe.file):
        raise UsageError(
            f"{named.recipe.file} is not in recipes/: a bisection finds its recipe again by its name",
            hint="copy the recipe to recipes/, and name it by its name",
        )
    model = lock.models.get(named.recipe.model or "")
    return named.recipe, model.pairing.image.repository if model else named.recipe.repository


def _ends(name: str, repository: Repository, pairings: tuple[Pairing, ...], request: BisectRequest) -> tuple[int, int]:
    """The number to begin from and the one to end at. With ``find_fix`` the first is the one that is bad."""
    present = pairings[0].image.number if pairings else repository.current
    last = request.good if request.find_fix else request.bad
    first = request.bad if request.find_fix else request.good
    last = last or (present if not request.find_fix else max(repository.numbers))
    for number in filter(None, (first, last)):
        if number not in repository.numbers:
            raise UsageError(f"{name} has no number {number}", hint="`builder list` shows the numbered images")
    if last is None:
        raise NothingToDoError(f"no number of {name} is current", hint="--bad N says which one fails")
    first = first or (present if request.find_fix else _last_good(repository, pairings, last))
    if first is None and not request.find_fix:
        hint = f"--good N says which one; `builder mark {name}:N good` keeps that"
        raise UsageError(f"no number before {name}:{last} is known to be good", hint=hint)
    if first is None or first == last:
        raise UsageError(f"{name}:{last} cannot be both ends", hint="--good N and --bad N say between which to look")
    return first, last


def _last_good(repository: Repository, pairings: tuple[Pairing, ...], last: int) -> int | None:
    """The number that was good last: marked so, with the model or by itself; else what was paired or current before."""
    earlier = [number for number in repository.numbers if number != last]
    paired = {pairing.image.number: pairing for pairing in pairings}
    marked = [
        number
        for number in earlier
        if (paired[number].status if number in paired else repository.numbers[number].status) == "good"
    ]
    if below := [number for number in marked if number < last]:
        return max(below)
    order = (*(pairing.image.number for pairing in pairings), *repository.previous)
    usable = [number for number in order if number in earlier and repository.numbers[number].status != "bad"]
    return next(iter(usable), max(marked, default=None))


def _numbers(workspace: Workspace, name: str, repository: Repository, ends: tuple[int, int]) -> tuple[int, ...]:
    """The ends, and between them every number whose image this engine has as it was recorded."""
    low, high = sorted(ends)
    between = [number for number in sorted(repository.numbers) if low < number < high]
    usable = [number for number in between if _is_here(workspace, name, repository, number)]
    for number in ends:
        if not _is_here(workspace, name, repository, number):
            raise ImageStateError(
                f"{name}:{number} is not in this engine as images.lock records it",
                hint=f"`builder rebuild {name}:{number}` makes it again, `builder pull {name}:{number}` fetches it",
            )
    return tuple(sorted((*ends, *usable), reverse=ends[0] > ends[1]))


def _is_here(workspace: Workspace, name: str, repository: Repository, number: int) -> bool:
    details = images.inspect(workspace.engine, str(ImageName(name, number)))
    return details is not None and images.fingerprint(details) == repository.numbers[number].fingerprint


def _require_judge(project: Project, judge: Judge, recipe: Recipe | None) -> None:
    if judge.kind == "probe":
        probing.require(project, judge.name)
    if recipe is None and (judge.kind in {"probe", "prove"} or (judge.kind == "script" and judge.serves)):
        hint = "name a recipe or a model, or give `--run SCRIPT --no-serve`, which gets the image alone"
        raise UsageError("a definition does not say how a model is served", hint=hint)


def _recipe_before(project: Project, recipe: Recipe | None, repository: Repository, ends: tuple[int, int]) -> str:
    """The recipe as the project's git had it before: when the image that fails was built, or where it was edited before
    that build, when the first number was. Empty where it is the same now."""
    if recipe is None:
        return ""
    moments = [repository.numbers[number].built for number in (max(ends), ends[0])]
    texts = (_recipe_at(project, recipe, moment) for moment in moments)
    return next((text for text in texts if text not in {"", recipe.text}), "")


def _recipe_at(project: Project, recipe: Recipe, moment: str) -> str:
    commit = project_history.last_change(project.root, recipe.file, moment)
    content = project_history.read_file(project.root, commit, recipe.file) if commit else None
    try:
        return content.decode() if content else ""
    except UnicodeDecodeError:
        return ""

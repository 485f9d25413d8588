"""The names of an image that was built elsewhere: that which the user typed, those by which registries have it, and the
repository that gives it a number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.engine import images, reference
from builder.errors import ImageStateError, UsageError

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.images import ImageDetails
    from builder.project import Project

# As image.schema.json has it for the repositories of definitions.
_REPOSITORY = re.compile(r"(?=.{1,200}$)[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*")
_ID = re.compile("(sha256:)?[0-9a-f]{12,64}")
_SHOWN_TAGS = 8


def find(engine: Endpoint, typed: str) -> ImageDetails:
    """The image whose name or id the user ``typed``. Raises ImageStateError where the engine has none such."""
    details = images.inspect(engine, typed)
    if details is not None:
        return details
    repository = reference.repository(typed)
    tags = sorted(images.tags(engine, [repository]))
    shown = ", ".join(tags[:_SHOWN_TAGS]) + (" …" if len(tags) > _SHOWN_TAGS else "")
    hint = "`docker image ls` shows those that are here"
    if tags:
        hint = f"it has: {shown}"
    elif not _ID.fullmatch(typed):
        hint = f"`docker pull {typed}` gets it; {hint}"
    raise ImageStateError(f"the engine has no image {typed}", hint=hint)


def choose(project: Project, typed: str, wanted: str | None, details: ImageDetails) -> tuple[str, str]:
    """The repository that gets the number, and the name by which the image is recorded. The user ``typed`` a name or an
    id, and ``wanted`` a repository, or its own (None).

    Raises UsageError where the repository cannot be told, or is no name for one.
    """
    name = reference.familiar(typed)
    own = {reference.repository(other) for other in (*details.tags, *details.digests)}
    if reference.repository(name) in own:
        repository = reference.repository(name)
        source = name if "@" in name else ":".join(reference.split_tag(name))
    else:
        tagged = sorted({reference.repository(tag) for tag in details.tags})
        if len(tagged) != 1 and wanted is None:
            several = f"it is tagged in {', '.join(tagged)}" if tagged else "it has no name"
            raise UsageError(
                f"{typed} belongs to no one repository: {several}",
                hint="say which repository it gets a number of: `--as REPOSITORY`",
            )
        repository, source = (tagged or [""])[0], details.id
    chosen = repository if wanted is None else wanted
    _refuse_definition(project, wanted)
    if not _REPOSITORY.fullmatch(chosen):
        what = f"`{chosen}`" if wanted is None else f"`--as {chosen}`"
        raise UsageError(
            f"{what} is no name of a repository here: lower-case letters and digits, with . _ - or / between them",
            hint="`--as REPOSITORY` gives it a number of another one, such as `--as vllm-node`",
        )
    return chosen, source


def _refuse_definition(project: Project, name: str | None) -> None:
    """Raises UsageError for the name of a definition, whose images belong to another repository."""
    if name in image.names(project) and (repository := image.repository_of(project, name)) != name:
        raise UsageError(
            f"`{name}` is an image definition: its images belong to {repository}", hint=f"`--as {repository}`"
        )


def in_registries(details: ImageDetails, source: str) -> tuple[str, ...]:
    """The names by which registries may have an image, that of the name which it is adopted by first. One without a
    slash is of this engine alone, or of Docker's own images."""
    names = {name for name in details.digests if "/" in name}
    own = reference.repository(source)
    return tuple(sorted(names, key=lambda name: (reference.repository(name) != own, name)))

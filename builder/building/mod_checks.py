"""The checks of mods, run in a container of the finished image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.engine.containers import Container
    from builder.plan.model import ImageCheck


def failures(container: Container, checks: Iterable[ImageCheck], seconds: float) -> dict[ImageCheck, str]:
    """Runs each check for at most ``seconds``, and describes those that fail."""
    return {check: failure for check in checks if (failure := _failure(container, check, seconds))}


def last_lines(output: str) -> str:
    """The end of a program's output, as it stands below a message."""
    return "\n".join(f"  {line}" for line in output.rstrip().splitlines()[-10:])


def _failure(container: Container, image_check: ImageCheck, seconds: float) -> str:
    """Runs a check, and describes its failure; empty if it passes."""
    check = image_check.check
    if image_check.script is not None:
        argv, failure = ["bash", "-c", image_check.script], f"{check.run} fails"
    elif check.contains:
        argv = ["grep", "-qF", "-e", check.contains, "--", str(check.file)]
        failure = f"{check.file} lacks {check.contains!r}"
    else:
        argv, failure = ["test", "-e", str(check.file)], f"{check.file} is not there"
    result = container.run(argv, timeout=seconds, env={"WORKSPACE_DIR": WORKSPACE})
    if not result.exit_code:
        return ""
    return "\n".join(
        part for part in (f"check of mod {image_check.owner}: {failure}", last_lines(result.output)) if part
    )

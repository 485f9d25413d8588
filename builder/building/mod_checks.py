"""The checks of a finished image: those of mods, run in a container, and what a check that fails is reported as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import BuildFailedError, UsageError
from builder.plan.model import WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from builder.engine.containers import Container
    from builder.plan.model import ImageCheck, Plan

VERSION = "vllm-version"
IMPORT = "vllm-import"
TEMPLATE = "chat-template"
GPU = "gpu"
"""The names of the checks that belong to no mod; the checks of a mod have its name."""


def left_out(plan: Plan, without: Mapping[str, str]) -> dict[str, str]:
    """Those of the checks ``without`` that the image of ``plan`` has, with the reason for each."""
    names = {VERSION, IMPORT, TEMPLATE, GPU, *(check.owner for check in plan.checks)}
    return {name: reason for name, reason in without.items() if name in names}


def require_known(plans: Collection[Plan], without: Mapping[str, str]) -> None:
    """Raises UsageError for a name in ``without`` that is no check of any of the images."""
    if unknown := [name for name in without if not any(left_out(plan, {name: ""}) for plan in plans)]:
        own = dict.fromkeys(check.owner for plan in plans for check in plan.checks)
        raise UsageError(
            f"`--without-check {unknown[0]}`: the image has no check of that name",
            hint=f"its checks are {', '.join([VERSION, IMPORT, TEMPLATE, GPU, *own])}",
        )


def failed(message: str, hint: str, names: Iterable[str]) -> BuildFailedError:
    """The error of an image whose checks ``names`` fail. What builds it all the same is named last."""
    options = " ".join(f"--without-check {name}" for name in dict.fromkeys(names))
    wrong = f"where the image is right and the check is wrong on this machine, build with `{options} --note WHY`"
    return BuildFailedError(message, hint=f"{hint}; {wrong}" if hint else wrong)


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

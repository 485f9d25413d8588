"""``builder lock --recover`` and ``builder lock --renumber``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder import humanize
from builder.cli.output import print_json, print_result

if TYPE_CHECKING:
    from builder.cli.context import Context


# The exit code where something is left to the user: a definition that could not be read.
NEEDS_ATTENTION = 1


def recover(context: Context, as_json: bool) -> int:
    """Rebuilds a lost images.lock, and prints what could not be recovered."""
    from builder.commands import lock_recover as command

    result = command.run(context.workspace())
    if as_json:
        print_json(
            {
                "images": [str(name) for name in result.images],
                "unknown": list(result.unknown),
                "findings": list(result.findings),
                "damaged": result.damaged or None,
            }
        )
        return NEEDS_ATTENTION if result.findings else 0
    count = humanize.counted(len(result.images), "image")
    print_result(f"images.lock records {count} again: {', '.join(map(str, result.images))}")
    if result.damaged:
        print_result(f"the damaged one is kept as {result.damaged}")
    print_result("not known:")
    for line in result.unknown:
        print_result(f"  {line}")
    if result.findings:
        print_result("to look at:")
    for line in result.findings:
        print_result(f"  {line}")
    return NEEDS_ATTENTION if result.findings else 0


def renumber(context: Context, as_json: bool) -> int:
    """Keeps both images where two branches gave one number to different ones."""
    from builder.commands import lock_renumber as command

    result = command.run(context.workspace())
    if as_json:
        print_json(
            {
                "renumbered": [
                    {
                        "from": str(renumbered.origin),
                        "to": str(renumbered.to),
                        "fingerprint": renumbered.image.fingerprint,
                        "build_directory": renumbered.directory,
                    }
                    for renumbered in result.renumbered
                ],
                "chosen": list(result.chosen),
                "tagged": [str(name) for name in result.tagged],
                "written": result.written,
                "absent": [{"model": m, "image": str(name), "remedy": way} for m, name, way in result.absent],
            }
        )
        return 0
    for renumbered in result.renumbered:
        print_result(f"{renumbered.origin}, built {renumbered.image.built}, is now {renumbered.to}")
        if not renumbered.directory:
            print_result(f"  its build directory was found nowhere: take it back with git as builds/{renumbered.to}")
    for line in result.chosen:
        print_result(f"both sides changed {line}: the first one's was kept")
    for name in result.tagged:
        print_result(f"{name} has its tag in this engine")
    for model, name, way_back in result.absent:
        print_result(f"{model} is paired with {name}, which is not in this engine: {way_back}")
    if result.written:
        folders = "builds evidence" if context.project.evidence.exists() else "builds"
        print_result(f"images.lock is whole again; to go on: `git add images.lock {folders}`")
    elif not result.tagged:
        print_result("nothing to mend")
    return 0

"""``builder lock --recover`` and ``builder lock --renumber``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.cli.output import print_json, print_result

if TYPE_CHECKING:
    from builder.cli.context import Context


# Not all is as it was: two places disagree, or the registry could not be asked.
LOOK = 1


def recover(context: Context, as_json: bool) -> int:
    """Makes a lost images.lock again and tells what could not be known."""
    from builder.commands import lock_recover as command

    done = command.run(context.workspace())
    if as_json:
        print_json(
            {
                "images": [str(name) for name in done.images],
                "unknown": list(done.unknown),
                "findings": list(done.findings),
                "damaged": done.damaged or None,
            }
        )
        return LOOK if done.findings else 0
    print_result(f"images.lock records {len(done.images)} images again: {', '.join(map(str, done.images))}")
    if done.damaged:
        print_result(f"the damaged one is kept as {done.damaged}")
    print_result("not known:")
    for line in done.unknown:
        print_result(f"  {line}")
    if done.findings:
        print_result("to look at:")
    for line in done.findings:
        print_result(f"  {line}")
    return LOOK if done.findings else 0


def renumber(context: Context, as_json: bool) -> int:
    """Keeps both images where two branches gave one number to different ones."""
    from builder.commands import lock_renumber as command

    done = command.run(context.workspace())
    if as_json:
        print_json(
            {
                "renumbered": [
                    {
                        "from": str(one.origin),
                        "to": str(one.to),
                        "fingerprint": one.image.fingerprint,
                        "build_directory": one.directory,
                    }
                    for one in done.renumbered
                ],
                "chosen": list(done.chosen),
                "tagged": [str(name) for name in done.tagged],
                "written": done.written,
            }
        )
        return 0
    for one in done.renumbered:
        print_result(f"{one.origin}, built {one.image.built}, is now {one.to}")
        if not one.directory:
            print_result(f"  its build directory was found nowhere: take it back with git as builds/{one.to}")
    for line in done.chosen:
        print_result(f"both sides changed {line}: the first one's was kept")
    for name in done.tagged:
        print_result(f"{name} has its tag in this engine")
    if done.written:
        print_result("images.lock is whole again; to go on: `git add images.lock builds`")
    elif not done.tagged:
        print_result("nothing to mend")
    return 0

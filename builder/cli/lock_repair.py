"""``builder lock --recover`` and ``builder lock --renumber``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.cli.output import document, put

if TYPE_CHECKING:
    from builder.cli.context import Context


# Not all is as it was: two places disagree, or the registry could not be asked.
LOOK = 1


def recover(context: Context, as_json: bool) -> int:
    """Makes a lost images.lock again and tells what could not be known."""
    from builder.commands import lock_recover as verb

    done = verb.run(context.workspace())
    if as_json:
        document(
            {
                "images": [str(name) for name in done.images],
                "unknown": list(done.unknown),
                "findings": list(done.findings),
                "damaged": done.damaged or None,
            }
        )
        return LOOK if done.findings else 0
    put(f"images.lock records {len(done.images)} images again: {', '.join(map(str, done.images))}")
    if done.damaged:
        put(f"the damaged one is kept as {done.damaged}")
    put("not known:")
    for line in done.unknown:
        put(f"  {line}")
    if done.findings:
        put("to look at:")
    for line in done.findings:
        put(f"  {line}")
    return LOOK if done.findings else 0


def renumber(context: Context, as_json: bool) -> int:
    """Keeps both images where two branches gave one number to different ones."""
    from builder.commands import lock_renumber as verb

    done = verb.run(context.workspace())
    if as_json:
        document(
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
        put(f"{one.origin}, built {one.image.built}, is now {one.to}")
        if not one.directory:
            put(f"  its build directory was found nowhere: take it back with git as builds/{one.to}")
    for line in done.chosen:
        put(f"both sides changed {line}: the first one's was kept")
    for name in done.tagged:
        put(f"{name} has its tag in this engine")
    if done.written:
        put("images.lock is whole again; to go on: `git add images.lock builds`")
    elif not done.tagged:
        put("nothing to mend")
    return 0

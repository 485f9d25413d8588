"""The command line of builder lock (updates pins; repairs with recover and merge), builder bases (newer base images),
and builder mirror (copies of foreign images in the user's registry)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder import commands
from builder.base import words
from builder.cli import output, progress
from builder.cli.options import PLATFORMS, Context, WordChoice, json_and_context, names, platform_option, update_option
from builder.cli.output import data, print_json, print_note, print_result

STALE = 4
SHOWN_COMMITS = 20


@click.command()
@click.argument("definitions", nargs=-1, metavar="[DEFINITION]…", shell_complete=names("definitions"))
@update_option
@platform_option
@click.option("--check", is_flag=True, help="Resolve nothing; end with 4 if images.lock lacks a required pin.")
@click.option("--recover", is_flag=True, help="Rebuild a lost images.lock from builds/ and the engine.")
@click.option(
    "--merge", is_flag=True, help="In a merge with conflicts, combine both sides of images.lock, and keep all images."
)
@click.option("--merge-driver", nargs=3, type=click.Path(path_type=Path, exists=True), hidden=True)
@json_and_context
def lock(
    context: Context,
    definitions: tuple[str, ...],
    update: dict[str, str | None],
    platform: str | None,
    check: bool,
    recover: bool,
    merge: bool,
    merge_driver: tuple[Path, Path, Path] | None,
    as_json: bool,
) -> int:
    """Resolve or move pins without building.

    Without --update, only missing or stale pins are resolved; newer upstream versions are ignored. The command writes
    each pin that it can resolve. If pins are left, it lists them at the end, and ends with 6. A community base image is
    pulled to read its contents (vLLM, FlashInfer, packages). A base image that is not pinned yet is pulled only if you
    name its definition.
    """
    if merge_driver:
        return _drive(*merge_driver)
    if recover or merge:
        if (recover and merge) or definitions or update or check or platform:
            raise click.UsageError("--recover and --merge cannot be combined with definitions or other options")
        return (_recover if recover else _merge)(context, as_json)
    if check and update:
        raise click.UsageError("--check and --update cannot be combined: --check resolves nothing")
    if check:
        return _check(context, definitions, platform, as_json)
    result = commands.lock.update_lock(context.workspace(), definitions, update, platform)
    if as_json:
        print_json({"moved": list(map(_document, result.moved))})
    else:
        for moved in result.moved:
            _print(moved)
        if not (result.moved or result.faults):
            print_result("nothing moved")
    if result.error:
        raise result.error
    return 0


def _check(context: Context, definitions: tuple[str, ...], platform: str | None, as_json: bool) -> int:
    missing = commands.lock.check(context.workspace(), definitions, platform)
    if as_json:
        print_json({"missing": missing})
    elif not missing:
        print_result("images.lock has every required pin")
    for line in () if as_json else missing:
        print_result(f"not pinned: {line}")
    return STALE if missing else 0


def _document(moved: commands.lock.MovedPin) -> dict[str, Any]:
    lists = {
        "packages": data(moved.packages, "name before after"),
        "older": data(moved.older, "name before after why?"),
    }
    return {
        **{name: items for name, items in lists.items() if items},
        **data(moved, "definition platform name before after"),
    }


def _print(moved: commands.lock.MovedPin) -> None:
    print_result(f"{moved.definition} {moved.name}: {moved.before or 'not pinned'} → {moved.after or 'gone'}")
    if moved.packages:
        from builder.cli import diff_cli

        where = "Python packages in the base image" if moved.name == "base" else "Python packages"
        for line in diff_cli.packages(where, moved.packages, full=True):
            print_result(f"  {line}" if line else line)
    for older in moved.older:
        print_result(f"  {older}", hanging=4)
    between = moved.between
    if between is None:
        return
    dropped = f", {between.dropped} dropped" if between.dropped else ""
    print_result(f"  {words.counted(between.total, 'upstream commit')} in between{dropped}")
    for commit in between.commits[:SHOWN_COMMITS]:
        print_result(f"    {commit.commit[:12]} {commit.date[:10]} {commit.title}")
    if between.total > SHOWN_COMMITS:
        print_result(f"    … and {between.total - SHOWN_COMMITS} more")


# The exit code if the user must act: a definition could not be read.
NEEDS_ATTENTION = 1


def _recover(context: Context, as_json: bool) -> int:
    result = commands.lock.recover_lock(context.workspace())
    code = NEEDS_ATTENTION if result.findings else 0
    if as_json:
        print_json(result, "images unknown findings damaged?")
        return code
    count = words.counted(len(result.images), "image")
    print_result(f"images.lock records {count} again: {', '.join(map(str, result.images))}")
    if result.damaged:
        print_result(f"the damaged file was kept as {result.damaged}")
    for title, lines in (("unknown:", result.unknown), ("to check:", result.findings)):
        for line in (title, *(f"  {line}" for line in lines)) if lines else ():
            print_result(line)
    return code


def _drive(base: Path, ours: Path, theirs: Path) -> int:
    """Merges three versions of images.lock for git (`man gitattributes`, merge drivers), with marks for conflicts."""
    if commands.lock.merge_files(base, ours, theirs):
        return 0
    conflict = "both sides changed the same entry, or used the same number"
    print_note(f"images.lock: {conflict}; to merge the file: `builder lock --merge`")
    return NEEDS_ATTENTION


def _merge(context: Context, as_json: bool) -> int:
    result = commands.lock.merge_lock(context.workspace())
    if as_json:
        renumbered = "renumbered(from=origin to fingerprint=image.fingerprint build_directory=directory)"
        print_json(
            {
                **data(result, f"{renumbered} chosen tagged written"),
                "absent": [{"model": model, "image": name, "remedy": way} for model, name, way in result.absent],
            }
        )
        return 0
    for each in result.renumbered:
        print_result(f"{each.origin}, built {each.image.built}, is now {each.to}")
        if not each.directory:
            folder = f"builds/{each.to.repository}/{each.to.number}"
            print_result(f"  its build directory was not found; restore it with git as {folder}")
    for line in result.chosen:
        print_result(f"kept {line}")
    for name in result.tagged:
        print_result(f"{name} has its tag again in this engine")
    for model, name, way_back in result.absent:
        print_result(f"{model} is paired with {name}, which is not in this engine: {way_back}")
    if result.pending:
        print_result(f"images.lock is merged. Next: `git add {' '.join(result.pending)}`")
    elif not result.tagged:
        print_result("nothing to merge")
    return 0


@click.command()
@click.argument("name", shell_complete=names("definitions"))
@click.option(
    "--newest", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="Read the N newest tags."
)
@click.option(
    "--platform",
    type=WordChoice(PLATFORMS),
    help="Show the images for this platform, instead of the engine's platform.",
)
@json_and_context
def bases(context: Context, name: str, newest: int, platform: str | None, as_json: bool) -> None:
    """Show the images of a registry by date, without pulling them.

    NAME is an image, such as eugr/spark-vllm, or a definition. A definition means its base image. The contents come
    from the labels of an image. Without labels, only the day and the size are known. To use an image: `builder lock
    DEFINITION --update base=DAY`, or `base: NAME@DAY` in image.yaml.
    """
    from builder.base.words import size_text

    with progress.showing(f"asking the registry of {name}"):
        listed = commands.bases.list_bases(context.workspace(), name, platform, newest)
    if as_json:
        print_json(data(listed))
        return
    rows = []
    for image in listed.images:
        vllm, flashinfer = (image.labels.get(key, "") for key in ("vllm", "flashinfer"))
        commits = {key: image.labels.get(key, "")[:9] for key in ("vllm_commit", "commit")}
        contents = [
            f"vLLM {vllm} {commits['vllm_commit']}".strip() if vllm or commits["vllm_commit"] else "",
            f"FlashInfer {flashinfer}" if flashinfer else "",
            f"built from {commits['commit']}" if commits["commit"] else "",
        ]
        states = [f"pinned by {', '.join(image.pinned_by)}" if image.pinned_by else "", "here" if image.here else ""]
        row = ", ".join(filter(None, (*contents, *states))) or "-"
        rows.append((image.day or "-", image.tag, size_text(image.size), row))
    if rows:
        output.print_table(("DAY", "TAG", "SIZE", "CONTENTS"), rows)
    else:
        among = f"none of its {newest} newest tags is" if listed.left_out else "it has no image"
        print_result(f"{listed.repository}: {among} for {listed.platform}")
    if listed.left_out:
        print_note(f"not read: {words.counted(listed.left_out, 'older tag')}; `--newest N` reads more")


@click.command()
@click.argument("images", nargs=-1, required=True, metavar="IMAGE…", shell_complete=names("definitions", "numbered"))
@json_and_context
def mirror(context: Context, images: tuple[str, ...], as_json: bool) -> None:
    """Copy upstream images to your own registry.

    IMAGE is an adopted number, an image such as NAME:TAG or NAME@DAY, or a definition (its pinned base is copied).
    The copy goes into the folder that `mirror:` in builder.yaml names. Without `mirror:`, the copy goes below
    mirror/ in the registry that `registry:` names. The copy has the same digest. If the original registry no longer has
    the base, builds use the copy. `builder doctor --upstream` shows which images have vanished.
    """
    copies = []
    with progress.showing(f"copying {', '.join(images)}"):
        for copied in commands.bases.mirror_images(context.workspace(), images):
            copies.append(copied)
            if not as_json:
                print_result(
                    f"{copied.image}\n  {'already copied to' if copied.already else 'copied to'} {copied.copy}"
                )
    if as_json:
        print_json({"images": data(copies)})

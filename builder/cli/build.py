"""``builder build``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from builder import quantity
from builder.cli import table, verbosity, wording
from builder.cli.complete import names
from builder.cli.context import Context, pass_context
from builder.cli.options import parse_overrides, parse_update, platform_option, set_option, update_option
from builder.cli.output import note, put, say
from builder.cli.verbosity import verbosity_options
from builder.events import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.building.prepare import Prepared
    from builder.commands.build import Built
    from builder.lock.model import ImageName
    from builder.plan.model import Step


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET…", shell_complete=names("definitions", "recipes"))
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="M",
    shell_complete=names("models"),
    help="Pair a further model with the image.",
)
@click.option("--mod", "mods", multiple=True, metavar="X", shell_complete=names("mods"), help="Bake a further mod.")
@update_option
@platform_option
@set_option
@click.option("--locked", is_flag=True, help="Resolve nothing: fail where images.lock does not cover what is asked.")
@click.option("--force", is_flag=True, help="Build though nothing has changed.")
@click.option("--no-promote", is_flag=True, help="Leave `latest` where it is.")
@click.option("--builder", metavar="NAME", help="Build with this `docker buildx` instance, and load the result.")
@click.option("--push", is_flag=True, help="Push the number as well, which the registry of builder.yaml then has.")
@click.option("--dry-run", is_flag=True, help="Print the plan, and touch nothing.")
@verbosity_options
@pass_context
def build(
    context: Context,
    targets: tuple[str, ...],
    models: tuple[str, ...],
    mods: tuple[str, ...],
    update: tuple[str, ...],
    platform: str | None,
    settings: tuple[str, ...],
    locked: bool,
    force: bool,
    no_promote: bool,
    builder: str | None,
    push: bool,
    dry_run: bool,
) -> None:
    """Build a numbered image from a recipe or a definition.

    TARGET is a recipe (recipes/NAME.yaml, or its name) or an image definition; several are built in one go, what they
    share once. Where nothing has changed since a number that is still there, nothing is built.

    With --push, what --builder builds comes through the registry, and only the layers that either side lacks move.
    """
    from builder.building import result_cache

    question = None
    if not (update or force or push or dry_run):
        words = (targets, models, mods, platform, settings, locked, no_promote)
        question = result_cache.ask(context.workspace(), words)
    if question and (known := result_cache.recall(context.workspace(), question)):
        put("\n".join(known))
        return
    # Only now: these take longer to import than all of the above.
    from builder.building import prepare, work_folder

    if not dry_run:
        work_folder.recover(context.workspace())
    overrides = parse_overrides(platform, settings)
    requests = [
        prepare.Request(target, mods, models, parse_update(update), overrides, locked=locked, promote=not no_promote)
        for target in targets
    ]
    through = _registry(context) if push else None
    wanted = prepare.prepare_all(context.workspace(), requests)
    if dry_run:
        for prepared in wanted:
            _print_plan(prepared, force)
        return
    there = [(one, name) for one in wanted if (name := one.compared.already) and not force]
    said = [line for prepared, name in there for line in _finish_without_building(context, prepared, name)]
    if said:
        put("\n".join(said))
    to_build = [one for one in wanted if force or not one.compared.already]
    if question and not to_build and not any(one.to_record for one in wanted):
        result_cache.keep(question, wanted, said)
    images = [name for _, name in there]
    if to_build:
        images += [built.image for built in _build(context, builder, to_build, through)]
    if through:
        _push(context, images)


def _registry(context: Context) -> str:
    from builder.definitions import configuration

    return configuration.load(context.project).required_registry()


def _finish_without_building(context: Context, prepared: Prepared, name: ImageName) -> Iterator[str]:
    if prepared.to_record:
        from builder.commands import build as verb

        verb.record_without_building(context.workspace(), prepared, name)
    return _already(prepared, name)


def _push(context: Context, images: list[ImageName]) -> None:
    from builder.cli import image_progress
    from builder.cli.push import print_done
    from builder.commands import push

    with image_progress.shown() as report:
        done = push.run(context.workspace(report), tuple(map(str, images)))
    for one in done:
        print_done(one)


def _build(context: Context, instance: str | None, to_build: list[Prepared], through: str | None) -> list[Built]:
    from builder.building import step_times
    from builder.cli import progress
    from builder.commands import build as verb
    from builder.distribution import remote_builder

    for prepared in to_build:
        for line in _why(prepared):
            say(Message(line))
    done: list[Built] = []
    try:
        with progress.shown(step_times.load(context.project)) as report:
            # Of several, those that are done are told also where a later one fails.
            workspace = context.workspace(report)
            workspace = replace(workspace, engine=remote_builder.with_instance(workspace, instance))
            done.extend(verb.run(workspace, to_build, through))
    finally:
        for built in done:
            _print_summary(built)
    return done


def _why(prepared: Prepared) -> Iterator[str]:
    yield from prepared.plan.remarks
    if prepared.compared.already:
        yield f"building again, as asked: {prepared.compared.already} has the same inputs"
    else:
        yield f"building {prepared.plan.repository} for {prepared.plan.definition.platform}, because"
        yield from (f"  {reason}" for reason in prepared.compared.reasons)


def _already(prepared: Prepared, name: ImageName) -> Iterator[str]:
    held = prepared.lock.images[name.repository]
    bad = held.numbers[name.number].status == "bad"
    yield f"already built as {name}" + (", which is marked bad: --force builds it again" if bad else "")
    if held.current != name.number:
        go = f"builder rollback {name.repository} --to {name.number}"
        yield f"current is {name.repository}:{held.current}; `{go}` makes {name} current"
    for model in prepared.models:
        if model in prepared.unpaired:
            yield f"{model} is now paired with {name}"
        elif model not in prepared.lock.models:
            yield f"{model} is not paired with it; `builder pair {model} {name} --force` does that"
        elif (pairing := prepared.lock.models[model].pairing).image != name:
            go = f"builder rollback {model} --to {name.number}"
            yield f"{model} stays paired with {pairing.image}; `{go}` moves it"


def _print_plan(prepared: Prepared, force: bool) -> None:
    from builder.plan import explain

    plan, compared = prepared.plan, prepared.compared
    kept = explain.kept(compared.before, plan.steps)
    rows = []
    for number, step in enumerate(plan.steps):
        takes = f"{len(step.takes)} locked" if step.name.endswith("packages") else _takes(step)
        rows.append(("built" if number < kept else "to build", step.name, takes))
    table.show(("", "STEP", "TAKES"), rows)
    for remark in plan.remarks:
        put(f"note: {remark}")
    put(f"input hash {plan.input_hash}")
    if compared.already:
        put(f"already built as {compared.already}" + ("; --force would build it again" if force else ""))
    else:
        put(f"would build the next number of {plan.repository}, because")
        for reason in compared.reasons:
            put(f"  {reason}")


def _takes(step: Step) -> str:
    from builder.plan.explain import short

    return ", ".join(f"{key} {short(value)}" for key, value in step.takes.items())


def _print_summary(built: Built) -> None:
    layers = f"{built.new_layers} of {built.layers} layers new" if built.new_layers < built.layers else "all layers new"
    cost = f"{quantity.of_bytes(built.size)}, {layers}, {built.cached_steps} of {built.steps} steps cached"
    put(click.style(f"built {built.image}", bold=True) + f" in {wording.duration(built.seconds)}: {cost}")
    for model in built.models:
        put(f"  paired with {model}")
    for change in built.changes:
        put(f"  {change}")
    if verbosity.level() != "quiet":
        note(f"  log: {built.log}")

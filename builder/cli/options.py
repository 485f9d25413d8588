"""Options that several commands share, and the types of the values of options and arguments."""

from __future__ import annotations

from datetime import timedelta

import click

from builder.cli.completers import names
from builder.suggestions import did_you_mean

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
PLATFORMS = ("linux/arm64", "linux/amd64")


class WordChoice(click.Choice[str]):
    """A choice of a few words. The error for any other lists all of them and suggests the nearest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Returns the word as typed. Raises click's error, which calls an argument by its name, not by its choices."""
        if value in self.choices:
            return value
        suggestion = did_you_mean(value, self.choices, code=True)
        message = f"`{value}` is none of {', '.join(self.choices)}" + (f"; {suggestion}" if suggestion else "")
        hint = f"'{param.name.upper()}'" if isinstance(param, click.Argument) else None
        raise click.BadParameter(message, ctx, param, hint)


platform_option = click.option(
    "--platform", type=WordChoice(PLATFORMS), help="The platform to build for, in place of the definition's."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value for an argument of the Dockerfile template, in place of image.yaml's.",
)
update_option = click.option(
    "--update",
    multiple=True,
    metavar="SOURCE[=REF]",
    shell_complete=names("sources"),
    help="Resolve base, vllm, python … again. REF is a branch, tag or commit, `release` for the newest one that is some"
    " days old, or the version of a wheel.",
)


def parse_age(_context: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    """Parses ``30d``, ``12h`` or ``2w``. Raises click's error for anything else."""
    if text is None:
        return None
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 5:
        raise click.BadParameter(f"`{text}` is no length of time such as 30d, 12h or 2w")
    return timedelta(**{unit: int(number)})


def parse_update(texts: tuple[str, ...]) -> dict[str, str | None]:
    """Parses ``SOURCE[=REF]``; returns the refs by source."""
    parts = (text.partition("=") for text in texts)
    return {name: ref or None for name, _, ref in parts}


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Parses ``--set KEY=VALUE``; returns the values by key. Raises click's error for one without a `=`."""
    parts = [text.partition("=") for text in texts]
    for key, sign, _ in parts:
        if not key or not sign:
            raise click.BadParameter(f"`{key}`: KEY=VALUE is wanted", param_hint="--set")
    return {key: value for key, _, value in parts}

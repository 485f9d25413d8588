"""Options that several commands have, what to resolve anew and what to take in place of what the files say; and the
kinds of values that options and arguments take."""

from __future__ import annotations

from datetime import timedelta

import click

from builder.suggestions import did_you_mean

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
PLATFORMS = ("linux/arm64", "linux/amd64")


class OneOf(click.Choice[str]):
    """One of a few words; anything else is refused with all of them, and with the nearest."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word as typed. Raises click's error, which calls an argument by its name and not by all the words."""
        if value in self.choices:
            return value
        suggestion = did_you_mean(value, self.choices, code=True)
        message = f"`{value}` is none of {', '.join(self.choices)}" + (f"; {suggestion}" if suggestion else "")
        hint = f"'{param.name.upper()}'" if isinstance(param, click.Argument) else None
        raise click.BadParameter(message, ctx, param, hint)


platform_option = click.option(
    "--platform", type=OneOf(PLATFORMS), help="The platform to build for, in place of the definition's."
)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value for the template, in place of the file's."
)
update_option = click.option(
    "--update", multiple=True, metavar="SOURCE[=REF]", help="Resolve base, vllm, python … anew; a git source at REF."
)


def parse_age(_context: click.Context, _parameter: click.Parameter, text: str | None) -> timedelta | None:
    """``30d``, ``12h`` or ``2w`` as typed. Raises click's error for anything else."""
    if text is None:
        return None
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not number.isdecimal() or len(number) > 5:
        raise click.BadParameter(f"`{text}` is no length of time such as 30d, 12h or 2w")
    return timedelta(**{unit: int(number)})


def parse_update(texts: tuple[str, ...]) -> dict[str, str | None]:
    """``SOURCE[=REF]`` as typed, by source."""
    parts = (text.partition("=") for text in texts)
    return {name: ref or None for name, _, ref in parts}


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """``--set KEY=VALUE`` as typed, by key. Raises click's error for one without a `=`."""
    parts = [text.partition("=") for text in texts]
    for key, sign, _ in parts:
        if not key or not sign:
            raise click.BadParameter(f"`{key}`: KEY=VALUE is wanted", param_hint="--set")
    return {key: value for key, _, value in parts}

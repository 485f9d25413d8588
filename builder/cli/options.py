"""Options that several commands have: what to resolve anew, and what to take in place of what the files say."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from builder.definitions.image_chain import Overrides

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
PLATFORMS = ("linux/arm64", "linux/amd64")

platform_option = click.option(
    "--platform", type=click.Choice(PLATFORMS), help="The platform to build for, in place of the definition's."
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


def parse_overrides(platform: str | None, texts: tuple[str, ...]) -> Overrides:
    """``--platform`` and ``--set KEY=VALUE`` as typed. Raises click's error for one without a `=`."""
    from builder.definitions.image_chain import Overrides

    parts = [text.partition("=") for text in texts]
    for key, sign, _ in parts:
        if not key or not sign:
            raise click.BadParameter(f"`{key}`: KEY=VALUE is wanted", param_hint="--set")
    return Overrides(platform, {key: value for key, _, value in parts})

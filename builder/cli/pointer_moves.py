"""Pointers that moved, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.cli import change_colours
from builder.cli.output import print_result

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from builder.numbered.pointers import PointerMove

SHOWN_DIFFERENCES = 8


def print_moves(
    moves: Sequence[PointerMove],
    differences: tuple[str, ...],
    staying: tuple[str, ...],
    would: str = "",
    foreign: Collection[str] = (),
) -> None:
    """Prints one line for each pointer, from → to; the ``latest`` of the ``foreign`` repositories stays. Then the
    differences between the images, and the models that stay."""
    for move in moves:
        what = move.what if move.is_model else f"{move.what}:latest"
        if move.what in foreign:
            what = f"{move.what}, what is current here"  # the tag stays, which is reported
        print_result(f"{would}{what}: {change_colours.moved(str(move.origin or 'nothing'), str(move.to))}")
    for line in differences[:SHOWN_DIFFERENCES]:
        print_result(f"  {line}")
    if len(differences) > SHOWN_DIFFERENCES:
        print_result(f"  … and {len(differences) - SHOWN_DIFFERENCES} more; `builder diff` shows all")
    to = next((move.to for move in moves if not move.is_model), None)
    for model in staying:
        print_result(f"  {model} stays; to move it too: `builder pair {model} {to}`")


def moves_json(moves: Iterable[PointerMove]) -> list[dict[str, Any]]:
    """The moves as JSON."""
    return [
        {
            "what": move.what,
            "kind": "model" if move.is_model else "repository",
            "from": str(move.origin) if move.origin else None,
            "to": str(move.to),
        }
        for move in moves
    ]

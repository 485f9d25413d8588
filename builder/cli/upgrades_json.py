"""Interrupted upgrades as JSON, for `status` and `list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.upgrading.interrupted import InterruptedUpgrade


def document(interrupted: InterruptedUpgrade) -> dict[str, Any]:
    """An interrupted upgrade as JSON: where it was, and the command that goes on with it."""
    upgrade = interrupted.upgrade
    return {
        "subject": interrupted.subject,
        **{name: getattr(upgrade, name, None) or None for name in ("stage", "before", "candidate", "started")},
        "problem": interrupted.problem or None,
        "goes_on_with": f"builder upgrade {interrupted.text}",
    }

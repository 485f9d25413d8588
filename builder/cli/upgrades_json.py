"""Interrupted upgrades as JSON, for `status` and `list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builder.upgrading.interrupted import InterruptedUpgrade


def document(upgrade: InterruptedUpgrade) -> dict[str, Any]:
    """An interrupted upgrade as JSON: where it was, and the command that goes on with it."""
    return {
        "subject": upgrade.subject,
        "stage": upgrade.stage or None,
        "before": upgrade.before or None,
        "candidate": upgrade.candidate or None,
        "started": upgrade.started or None,
        "problem": upgrade.problem or None,
        "goes_on_with": f"builder upgrade {upgrade.text}",
    }

"""The limits of templates that others publish, which are no fault of the image that serves the model.

Most published templates drop a second system message, or what a model says beside its calls, or refuse several calls
at once: their makers want them so. Such a limit is told, and fails nothing, as long as most conversations of the kind
hold. Where most of a kind break, the template is not for what is asked of it, such as calls of tools that it never
shows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.proving.conversations import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.evidence.record import Finding
    from builder.proving.conversations import Question

_BROKEN = frozenset({"fail", "unclear"})
# No answer of the front end at all, or a template that breaks: nobody wants that, whoever published the template.
_NEVER = frozenset({"answer", "template"})
# The manner of a template: its maker has trained the model with it.
_MANNER = frozenset(
    {
        *("white space", "delimiters", "format", "types", "required", "developer", "result", "generation"),
        *("thinking", "reasoning", "escaped"),
    }
)


def told(questions: Sequence[Question], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with those that are limits as `pass`: what is told of a template beside its verdict."""
    kinds = {question.name: kind for question in questions if (kind := _kind(question))}
    sizes = Counter(kinds.values())
    broken = {each.at for each in findings if each.verdict in _BROKEN and each.check not in _MANNER}
    counts = Counter(kinds[name] for name in broken if name in kinds)
    limited = {kind for kind in sizes if 2 * counts[kind] <= sizes[kind]}

    def settled(finding: Finding) -> Finding:
        is_limit = finding.check in _MANNER or (finding.check not in _NEVER and kinds.get(finding.at) in limited)
        return replace(finding, verdict="pass") if finding.verdict in _BROKEN and is_limit else finding

    return tuple(map(settled, findings))


def _kind(question: Question) -> str:
    """The kind of a conversation; empty for a recorded output, which no template has a part in."""
    if not isinstance(question.subject, Conversation):
        return ""
    if question.kind == "turn":
        return "turns"
    if any(turn.calls for turn in question.subject.turns):
        return "calls"
    return "tools" if question.subject.tools else "plain"

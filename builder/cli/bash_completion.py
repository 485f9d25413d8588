"""Completion in bash, in place of click's own; and what no shell can have asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from builder.errors import UsageError

if TYPE_CHECKING:
    import click

VARIABLE = "_BUILDER_COMPLETE"


class Bash(BashComplete):
    """Bash breaks words at colons, which stand in ``vllm-node-tf5:7``: the line is split here instead, and what comes
    before the last colon is left out of the answers."""

    source_template = r"""
%(complete_func)s() {
    local IFS=$'\n' kind value
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one at the cursor, and what of that one is typed."""
        line = os.environ["COMP_LINE"].encode()[: int(os.environ["COMP_POINT"])].decode(errors="ignore")
        words = split_arg_string(line)
        if line.endswith((" ", "\t")):
            words.append("")
        return words[1:-1], words[-1] if len(words) > 1 else ""

    def format_completion(self, item: CompletionItem) -> str:
        """One line a completion: its kind and its value."""
        value: Any = item.value
        typed = self.get_completion_args()[1]
        if ":" in os.environ.get("COMP_WORDBREAKS", "") and item.type == "plain":
            value = value[typed.rfind(":") + 1 :]
        return f"{item.type},{value}"


def require_question(command: click.Command, asked: str) -> None:
    """Raises UsageError where no shell can have set the variable to ``asked``: it is none of what shells say in it, or
    the words of a line to complete are not beside it."""
    shell, _, instruction = asked.partition("_")
    kind = get_completion_class(shell)
    is_meant = kind is not None and instruction in {"complete", "source"}
    if kind and instruction == "complete":
        try:
            kind(command, {}, "builder", VARIABLE).get_completion_args()
        except (KeyError, ValueError, IndexError):  # a variable of the line is not there, is no number, or is blank
            is_meant = False
    if not is_meant:
        raise UsageError(
            f"{VARIABLE} is set to `{asked}`: only a shell that completes a line sets it",
            hint=f"`unset {VARIABLE}`; `builder completion --help` tells how completion is set up",
        )


add_completion_class(Bash)

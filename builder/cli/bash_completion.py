"""Completion in bash, in place of click's own, and the check of the variable by which shells request it."""

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
    """Bash completion for names with colons, such as ``vllm-node-tf5:7``. Bash breaks words at colons: the line is
    split here instead, and everything up to the last colon is left out of the answers."""

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
        """Returns the words before the one at the cursor, and the typed part of that one."""
        line = os.environ["COMP_LINE"].encode()[: int(os.environ["COMP_POINT"])].decode(errors="ignore")
        words = split_arg_string(line)
        if line.endswith((" ", "\t")):
            words.append("")
        return words[1:-1], words[-1] if len(words) > 1 else ""

    def format_completion(self, item: CompletionItem) -> str:
        """Formats a completion as a line: its kind and its value."""
        value: Any = item.value
        typed = self.get_completion_args()[1]
        if ":" in os.environ.get("COMP_WORDBREAKS", "") and item.type == "plain":
            value = value[typed.rfind(":") + 1 :]
        return f"{item.type},{value}"


def require_shell_request(command: click.Command, request: str) -> None:
    """Raises UsageError if no shell can have set the variable to ``request``: it is not one of the values that shells
    set, or the variables with the line to complete are missing."""
    shell, _, instruction = request.partition("_")
    kind = get_completion_class(shell)
    is_valid = kind is not None and instruction in {"complete", "source"}
    if kind and instruction == "complete":
        try:
            kind(command, {}, "builder", VARIABLE).get_completion_args()
        except (KeyError, ValueError, IndexError):  # a variable of the line is missing, not a number, or blank
            is_valid = False
    if not is_valid:
        raise UsageError(
            f"{VARIABLE} is set to `{request}`: only a shell that completes a line sets it",
            hint=f"`unset {VARIABLE}`; `builder completion --help` tells how completion is set up",
        )


add_completion_class(Bash)

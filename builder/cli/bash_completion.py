"""Completion in bash, in place of click's own."""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string


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


add_completion_class(Bash)

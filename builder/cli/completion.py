"""``builder completion``."""

from __future__ import annotations

import click

from builder.cli.options import WordChoice
from builder.cli.output import print_document


@click.command()
@click.argument("shell", type=WordChoice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what bash, zsh or fish needs to complete names.

    \b
    bash   builder completion bash > ~/.local/share/bash-completion/completions/builder
    zsh    builder completion zsh > ~/.zfunc/_builder     (with ~/.zfunc in $fpath)
    fish   builder completion fish > ~/.config/fish/completions/builder.fish
    """
    print_document(source(shell))


def source(shell: str) -> str:
    """The script with which ``shell`` completes; it calls `builder` for the names."""
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    return kinds[shell](click.Command("builder"), {}, "builder", "_BUILDER_COMPLETE").source() + "\n"

"""``builder completion``."""

from __future__ import annotations

import click

from builder.cli.options import WordChoice
from builder.cli.output import print_document


@click.command()
@click.argument("shell", type=WordChoice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what bash, zsh or fish needs to complete names.

    \b
    bash   builder completion bash > ~/.local/share/bash-completion/completions/builder
    zsh    builder completion zsh > ~/.zfunc/_builder     (with ~/.zfunc in $fpath)
    fish   builder completion fish > ~/.config/fish/completions/builder.fish
    """
    print_document(source(ctx.find_root().command, shell))


def source(root: click.Command, shell: str) -> str:
    """The script with which ``shell`` completes the commands of ``root``."""
    from click.shell_completion import get_completion_class

    from builder.cli.bash_completion import VARIABLE, Bash
    from builder.cli.fish_completion import Fish

    kind = {"bash": Bash, "fish": Fish}.get(shell) or get_completion_class(shell)
    if kind is None:
        raise ValueError(f"click knows no shell {shell}")
    return kind(root, {}, "builder", VARIABLE).source() + "\n"

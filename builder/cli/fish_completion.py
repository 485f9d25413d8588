"""Completion in fish, in place of click's own script, which cuts a description at its first comma."""

from __future__ import annotations

from click.shell_completion import FishComplete


class Fish(FishComplete):
    """Fish completion for descriptions with commas: a line is split at the first one alone, after its kind."""

    source_template = r"""
function %(complete_func)s
    for completion in (env %(complete_var)s=fish_complete \
            COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) %(prog_name)s)
        set -l parts (string split --max 1 "," -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

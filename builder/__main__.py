"""``builder`` and ``python -m builder``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from builder.cli.main import run_program

    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()

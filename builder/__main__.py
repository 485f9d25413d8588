"""``builder`` and ``python -m builder``."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    # Importing makes little garbage and many objects: at the usual threshold, a twentieth of `list` is collection.
    gc.set_threshold(50_000, 20, 20)
    try:
        from builder.cli.main import run_program
    except KeyboardInterrupt:  # ^C in the first moment, before the command line can report it
        sys.exit(130)
    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()

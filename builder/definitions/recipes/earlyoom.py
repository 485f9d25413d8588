"""earlyoom beside a server: it ends the server while the machine still has some memory.

A Spark whose memory is all in use does not end anything, it freezes. The community's launcher runs earlyoom as the
container's main process, with these figures, and the server beside it. Here the server stays the main process: it gets
the stop signal, and the container ends with it, so that the engine starts it again and `run` knows that it crashed.
earlyoom ends processes of its own container only, whichever takes most.
"""

from __future__ import annotations

PROGRAM = "earlyoom"
# It ends the server below 512 MiB of available memory, however much swap is free, kills it below 100 MiB, and writes a
# line every minute: https://github.com/rfjakob/earlyoom
ARGV = (PROGRAM, "-M", "524288,102400", "-s", "100", "-r", "60")
MISSING = f"{PROGRAM} is not in this image"

# In the background twice, so that the container's init is its parent, and not the server.
_SCRIPT = (
    f"command -v {PROGRAM} >/dev/null || {{ echo '{MISSING}' >&2; exit 127; }}\n( {' '.join(ARGV)} & )\nexec \"$@\""
)


def beside(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector that runs ``argv`` with earlyoom beside it."""
    return ("sh", "-c", _SCRIPT, "sh", *argv)

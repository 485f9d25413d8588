"""The results of a part: figures and failed checks, each printed as a line of JSON when it is known.

Every process that imports this can be asked for its stack (part_run.py): a part, and the engine that it spawns.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

if stacks := os.environ.get("PART_STACKS"):
    # Not closed: a process that stands still writes there.
    faulthandler.register(signal.SIGUSR1, Path(stacks, str(os.getpid())).open("w"), all_threads=False)  # noqa: SIM115


class Results:
    """What is printed: ``figures`` and ``findings`` as evidence has them, ``counts`` of what was tried, ``versions``. A
    part that is ended in the middle has told what it knew."""

    def figure(self, name: str, at: dict[str, int | str], unit: str, better: str, *values: float) -> None:
        self._print(figure={"name": name, "at": at, "unit": unit, "better": better, "values": list(values)})

    def check(self, name: str, at: str, holds: bool, text: str) -> None:
        """A check that must hold; one that does not is a finding."""
        self._print(count="checks")
        if not holds:
            self._print(finding={"check": name, "at": at, "verdict": "fail", "text": text})

    def left_out(self, name: str, at: str, reason: str) -> None:
        """A check that cannot be made here, with the reason."""
        self._print(finding={"check": name, "at": at, "verdict": "unclear", "text": reason})

    def version(self, name: str, version: str) -> None:
        self._print(version={name: version})

    def _print(self, **result: Any) -> None:
        sys.stdout.write(f"\n{json.dumps({'result': result})}\n")
        sys.stdout.flush()

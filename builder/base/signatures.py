"""SSH signatures of files, by `ssh-keygen -Y`: https://man.openbsd.org/ssh-keygen. A namespace keeps a signature of one
kind of file from being shown as one of another."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from builder.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIX = ".sig"
_SECONDS = 60


def sign(content: bytes, key: Path, namespace: str) -> bytes:
    """The signature of ``content`` by a private SSH key. Raises UsageError where that cannot sign."""
    try:
        done = _run(["sign", "-q", "-n", namespace, "-f", str(key.absolute())], content)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{key}: cannot sign: {error}", hint="ssh-keygen signs: it is in openssh-client") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise UsageError(
            f"{key}: cannot sign: {message}", hint="name a private SSH key, or its public half where an agent has it"
        )
    return done.stdout


def fits(signature: Path, content: bytes, namespace: str) -> bool | None:
    """True if the file ``signature`` signs ``content`` with whatever key. None if the file is missing, or if this
    machine cannot check signatures."""
    if not signature.is_file():
        return None
    try:
        return _run(["check-novalidate", "-q", "-n", namespace, "-s", str(signature)], content).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None


def signer(signature: Path, content: bytes, namespace: str, allowed: Path) -> str:
    """The principal in the file ``allowed`` (ALLOWED SIGNERS in ssh-keygen(1)) whose key signed ``content``; empty
    where none of them did. Raises UsageError where nothing here can check it."""
    try:
        principals = _run(["find-principals", "-s", str(signature), "-f", str(allowed)], b"")
        for principal in principals.stdout.decode(errors="replace").splitlines():
            words = ["verify", "-q", "-n", namespace, "-s", str(signature), "-f", str(allowed), "-I", principal]
            if _run(words, content).returncode == 0:
                return principal
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"no signature can be checked: {error}", hint="ssh-keygen is in openssh-client") from None
    return ""


def _run(words: Sequence[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ["ssh-keygen", "-Y", *words]
    return subprocess.run(argv, input=content, capture_output=True, check=False, timeout=_SECONDS)

"""SSH signatures of files, by `ssh-keygen -Y`: https://man.openbsd.org/ssh-keygen. A namespace keeps a signature of one
kind of file from counting for another kind."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from builder.base.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".sig"


def signer(signature: Path, content: bytes, namespace: str, allowed: Path) -> str:
    """The principal in the file ``allowed`` (ALLOWED SIGNERS in ssh-keygen(1)) whose key signed ``content``; empty if
    there is none. Raises UsageError if this machine cannot check signatures."""

    def keygen(*words: str, content: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        argv = ["ssh-keygen", "-Y", *words, "-s", str(signature), "-f", str(allowed)]
        return subprocess.run(argv, input=content, capture_output=True, check=False, timeout=60)

    try:
        for principal in keygen("find-principals").stdout.decode(errors="replace").splitlines():
            if not keygen("verify", "-q", "-n", namespace, "-I", principal, content=content).returncode:
                return principal
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"no signature can be checked: {error}", hint="ssh-keygen is in openssh-client") from None
    return ""

"""Statements that a machine built a number again and got the same content: ``evidence/REPOSITORY/N/witnesses/``.

A statement names its machine by a digest alone, so that two of one machine count once. It is signed where the owner
names an SSH key (``ssh-keygen -Y sign``); https://man.openbsd.org/ssh-keygen.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from builder import timestamp
from builder.errors import Location, Problem, UsageError
from builder.evidence import store
from builder.storage import atomic_file, regular_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import ImageName
    from builder.project import Project

FOLDER = "witnesses"
_NAMESPACE = "builder-witness"
_LARGEST = 64 << 10
_FILE = re.compile(r"[0-9a-f]{16}\.json")
_MACHINE_ID = Path("/etc/machine-id")


@dataclass(frozen=True)
class Witness:
    """One machine's statement: at ``stated`` (RFC 3339) it built ``image`` and got the content ``fingerprint`` with the
    manifest ``digest``. ``platform`` is the machine's own, ``versions`` those of what built it."""

    image: str
    fingerprint: str
    digest: str
    machine: str
    platform: str
    versions: Mapping[str, str]
    stated: str


@dataclass(frozen=True)
class Witnesses:
    """The statements about a number, one a machine, of which ``signed`` have a signature that fits; and the
    problems of the others."""

    statements: tuple[Witness, ...] = ()
    signed: int = 0
    problems: tuple[Problem, ...] = ()


def state(
    project: Project,
    name: ImageName,
    fingerprint: str,
    digest: str,
    platform: str,
    versions: Mapping[str, str],
    key: Path | None,
) -> Path:
    """Writes this machine's statement, in place of an earlier one, and returns its file; signed with the private SSH
    ``key``, if given. Raises UsageError where that cannot sign."""
    machine = sha256(b"builder\0" + _machine_id()).hexdigest()[:16]
    statement = Witness(str(name), fingerprint, digest, machine, platform, dict(versions), timestamp.now())
    folder = store.folder(project, name) / FOLDER
    path = folder / f"{machine}.json"
    content = f"{json.dumps(asdict(statement), indent=2)}\n".encode()
    signature = _signed(content, key) if key else None
    atomic_file.make_folder(folder)
    path.with_suffix(".json.sig").unlink(missing_ok=True)
    atomic_file.write(path, content)
    if signature:
        atomic_file.write(path.with_suffix(".json.sig"), signature)
    return path


def look(project: Project, name: ImageName, fingerprint: str) -> Witnesses:
    """Reads the statements about a number whose content is ``fingerprint``: one of other content, or with a signature
    that does not fit, is a problem."""
    folder = store.folder(project, name) / FOLDER
    statements, problems, signed = [], [], 0
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        shown = Location(f"evidence/{name.repository}/{name.number}/{FOLDER}/{path.name}")
        try:
            content = regular_file.read(path, _LARGEST)
            statement = Witness(**json.loads(content))
        except (OSError, ValueError, TypeError) as error:
            problems.append(Problem(shown, f"it is no statement of a witness: {error}"))
            continue
        if not _FILE.fullmatch(path.name) or statement.image != str(name) or statement.machine != path.stem:
            problems.append(Problem(shown, f"it is not about {name}, or not under the name of its machine"))
        elif statement.fingerprint != fingerprint:
            problems.append(Problem(shown, f"it tells of other content than images.lock: {statement.fingerprint}"))
        elif (fits := _signature_fits(path, content)) is False:
            problems.append(Problem(shown, "its signature does not fit: the statement was changed after it was signed"))
        else:
            statements.append(statement)
            signed += fits is True
    return Witnesses(tuple(statements), signed, tuple(problems))


def _machine_id() -> bytes:
    try:
        return regular_file.read(_MACHINE_ID, _LARGEST).strip()
    except OSError:
        import socket

        return socket.gethostname().encode()


def _signed(content: bytes, key: Path) -> bytes:
    argv = ["ssh-keygen", "-Y", "sign", "-q", "-n", _NAMESPACE, "-f", str(key.absolute())]
    try:
        done = subprocess.run(argv, input=content, capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{key}: cannot sign: {error}", hint="ssh-keygen signs: it is in openssh-client") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise UsageError(
            f"{key}: cannot sign: {message}", hint="name a private SSH key, or its public half where an agent has it"
        )
    return done.stdout


def _signature_fits(path: Path, content: bytes) -> bool | None:
    """True where the signature beside a statement is one of it, False where it is not, None where there is none or
    nothing here can check it."""
    signature = path.with_suffix(".json.sig")
    if not signature.is_file():
        return None
    argv = ["ssh-keygen", "-Y", "check-novalidate", "-q", "-n", _NAMESPACE, "-s", str(signature)]
    try:
        return subprocess.run(argv, input=content, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return None

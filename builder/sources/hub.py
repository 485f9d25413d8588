"""This page downloads models and files from the Hugging Face hub.

Errors come first, then the download of one file, a range of a file, and whole models.
A download resumes after an interruption and is verified. No error repeats a token or a login.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Self

from builder.base import files, hub_cache
from builder.base.errors import ModelUnavailableError, SourceError
from builder.base.files import open_locked_to_append, put_file_in_place
from builder.base.hub_cache import INCOMPLETE
from builder.sources import git

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from httpx2 import HTTPError


# Errors of downloads from the Hugging Face hub, in words for the user. Neither the token nor a login in the hub's
# address is ever repeated.

PUBLIC = "https://huggingface.co"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


def hub_address(environ: Mapping[str, str]) -> str:
    """Returns the address of the hub, without any login in it."""
    return git.split((environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")).url


@contextmanager
def translated_errors(environ: Mapping[str, str], model: str, revision: str) -> Iterator[None]:
    """Translates what huggingface_hub raises into a SourceError that says what to do."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        yield
    except (HTTPError, OSError, HFValidationError) as error:
        # huggingface_hub hides why there was no answer behind "not in the cache".
        hidden = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
        cause = hidden if isinstance(hidden, (HTTPError, OSError)) else error
        message, hint = _explain(environ, cause, model, revision)
        kind = ModelUnavailableError if _is_unavailable(environ, cause) else SourceError
        raise kind(_scrub(environ, message), hint=hint) from None


def _is_unavailable(environ: Mapping[str, str], error: Exception) -> bool:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    return isinstance(error, (GatedRepoError, RevisionNotFoundError)) or _is_missing(environ, error)


def _is_missing(environ: Mapping[str, str], error: Exception) -> bool:
    """True if the hub shows no such model. A request without a token gets a 401 for it. huggingface_hub (2.4) reads
    that as "not found" for addresses with https: only; HF_ENDPOINT may name an http: one."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return True
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 401 and not has_token(environ)


def _explain(
    environ: Mapping[str, str], error: HTTPError | OSError | ValueError, model: str, revision: str
) -> tuple[str, str]:
    from httpx2 import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    hub = hub_address(environ)
    if isinstance(error, HfHubHTTPError):
        return _refused(environ, error, model, revision)
    if isinstance(error, HTTPError):
        advice = "look at the network, HTTPS_PROXY and HF_ENDPOINT, and run this again: it goes on where it stopped"
        return f"{hub} does not answer: {_first_line(error)}", f"{advice}. HF_HUB_OFFLINE=1 takes what is in the cache"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return (
            f"the disk is full: {error.filename or model}",
            "make room and run this again: it goes on where it stopped",
        )
    if isinstance(error, OSError) and error.errno:
        return (
            f"{error.filename or model}: {error.strerror}",
            "may this folder be written to? HF_HOME names another one",
        )
    return f"{model} cannot be downloaded: {_first_line(error)}", "run this again: it goes on where it stopped"


def _refused(environ: Mapping[str, str], error: HTTPError, model: str, revision: str) -> tuple[str, str]:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RemoteEntryNotFoundError, RevisionNotFoundError

    hub = hub_address(environ)
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if isinstance(error, GatedRepoError):
        message = f"{model} is gated: its terms have to be accepted at {hub}/{model}"
        if has_token(environ):
            return message, "do that with the account of HF_TOKEN, and see that this token may read gated models"
        return message, f"then set HF_TOKEN to a token of that account ({hub}/settings/tokens)"
    if isinstance(error, RevisionNotFoundError):
        return f"{model} has no revision `{revision}`", f"{hub}/{model}/commits/main shows those it has"
    if _is_missing(environ, error):
        private = "its token may not see it" if has_token(environ) else "HF_TOKEN is not set"
        return f"{hub} shows no model `{model}`", f"is the name right? If it is private: {private}"
    if status == 401:
        return f"{hub} refuses the token", f"set HF_TOKEN to a valid one ({hub}/settings/tokens), or unset it"
    if isinstance(error, RemoteEntryNotFoundError):
        return f"{hub} lists a file of {model} that it does not have", "is HF_ENDPOINT a whole mirror?"
    return f"{hub} answers {status}: {_first_line(error)}", "run this again later: it goes on where it stopped"


def has_token(environ: Mapping[str, str]) -> bool:
    """True if requests to the hub carry a token: HF_TOKEN, or one that `hf auth login` stored."""
    from huggingface_hub import get_token

    return bool(environ.get("HF_TOKEN") or get_token())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _scrub(environ: Mapping[str, str], text: str) -> str:
    from huggingface_hub import get_token

    for secret in {environ.get("HF_TOKEN"), get_token(), git.split(environ.get("HF_ENDPOINT", "")).secret}:
        text = text.replace(secret, "***") if secret else text
    return text


# Download of one file from the hub, resumed where an earlier process stopped, and verified against its content's id.
# The cache names a file's content by that id (https://huggingface.co/docs/huggingface_hub/guides/manage-cache): the
# SHA-256 of a file in Git LFS, and for any other file the id that git gives it, a SHA-1.

LARGEST = 50_000_000_000
"""The size in bytes above which the hub serves a file over its Xet protocol only."""

SHA256_DIGITS = 64

CountBytes = Callable[[int], None]
"""Is called with the bytes received since the last call; with a negative number if some have to be fetched again."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of ``size`` bytes on the hub; ``blob`` is the id of its content, ``token`` the user's, if there is one."""

    url: str
    size: int
    blob: str
    token: str | None = field(repr=False)


class StoppedError(Exception):
    """The work was stopped: the rest of the file is no longer needed."""


def until_stopped(stopped: threading.Event, count_bytes: CountBytes) -> CountBytes:
    """Returns ``count_bytes``, extended to end the thread that calls it once ``stopped`` is set."""

    def count(more: int) -> None:
        if stopped.is_set():
            raise StoppedError
        count_bytes(more)

    return count


def bytes_present(blobs: Path, blob: str | None) -> int:
    """Returns the bytes of a file's content that are in the cache, complete or not; 0 if its id is not known."""
    for name in (blob, f"{blob}{INCOMPLETE}") if blob else ():
        with suppress(FileNotFoundError):
            return (blobs / name).stat().st_size
    return 0


def download_file(remote: RemoteFile, blobs: Path, link: Path, count_bytes: CountBytes) -> None:
    """Downloads a file into ``blobs``, and makes ``link`` point to it.

    A second process that downloads the same file waits for the first. Raises SourceError if other content arrived, and
    what huggingface_hub raises.
    """
    blob = blobs / remote.blob
    blobs.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        partial = blob.with_name(f"{blob.name}{INCOMPLETE}")
        with os.fdopen(open_locked_to_append(partial), "ab") as partial_file:
            if blob.exists():  # by another process meanwhile
                partial.unlink()
            else:
                _receive(remote, partial_file, count_bytes)
                partial_file.flush()
                _require_whole(remote, partial)
                put_file_in_place(partial_file, partial, blob)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(os.path.relpath(blob, link.parent))


def _receive(remote: RemoteFile, file: BinaryIO, count_bytes: CountBytes) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    present = file.tell()
    if present > remote.size:
        file.truncate(0)
        present = 0
    http_get(
        remote.url,
        file,
        resume_size=present,
        headers=build_hf_headers(token=remote.token),
        expected_size=remote.size,
        tqdm_class=lambda **_said: _ProgressBar(count_bytes),  # type: ignore[arg-type]
    )


def _require_whole(remote: RemoteFile, path: Path) -> None:
    received = _content_id(path, remote.blob)
    if received != remote.blob:
        path.unlink()
        raise SourceError(
            f"{remote.url}: what arrived is not what the hub lists (its id is {received}, not {remote.blob})",
            hint="run this again: this file begins anew. If it stays so, a proxy or mirror is at fault",
        )


def _content_id(path: Path, like: str) -> str:
    """Returns the id of a file's content, of the same kind as ``like`` (see the module)."""

    def git() -> hashlib._Hash:
        # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects#_object_storage
        return hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)

    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256 if len(like) == SHA256_DIGITS else git).hexdigest()


class _ProgressBar:
    """A stand-in for the progress bar that huggingface_hub expects."""

    def __init__(self, count_bytes: CountBytes) -> None:
        self._count_bytes = count_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, more: int) -> None:
        self._count_bytes(more)


# Reading a range of bytes of a file on the hub, without the rest of it.

_PARTIAL = 206
_CHUNK = 1 << 16


def read_file_range(environ: Mapping[str, str], snapshot: Snapshot, path: str, begin: int, size: int) -> bytes:
    """Returns ``size`` bytes at ``begin`` of a file of a model, fewer where it ends before. A server that sends whole
    files is stopped after what is wanted. Raises SourceError."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

    if size <= 0:
        return b""
    url = hf_hub_url(
        hub_cache.repository(snapshot.model),
        path,
        revision=snapshot.commit,
        endpoint=environ.get("HF_ENDPOINT", "").rstrip("/") or None,
    )
    headers = {
        **build_hf_headers(token=environ.get("HF_TOKEN") or None),
        "Range": f"bytes={begin}-{begin + size - 1}",
        "Accept-Encoding": "identity",
    }
    with (
        translated_errors(environ, snapshot.model, snapshot.revision),
        http_stream_backoff("GET", url, headers=headers, follow_redirects=True, max_retries=3) as response,
    ):
        hf_raise_for_status(response)
        if begin and response.status_code != _PARTIAL:
            raise SourceError(
                f"{hub_address(environ)} sends whole files only, and a part of {snapshot.model}'s {path} is needed",
                hint="`builder download` fetches the model; then its headers are read here",
            )
        content = bytearray()
        for chunk in response.iter_bytes(_CHUNK):
            content += chunk
            if len(content) >= size:
                break
    return bytes(content[:size])


# Download of models from the Hugging Face hub, with huggingface_hub, into its own cache. Most files are fetched by
# `file_download`: huggingface_hub (2.4) itself resumes after a lost connection, but starts a file again after its
# process has ended, and the weights of a large model are a few files of several GB each. It still fetches files that
# only the Xet protocol serves, and those of a mirror that does not list the ids of their contents.

# Files at a time: enough to use the bandwidth, and few enough that little is left half done.
_WORKERS = 4
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelFile:
    """A file of a model: its path, its size in bytes, and the id of its content, if the hub gives it."""

    path: str
    size: int
    blob: str | None


@dataclass(frozen=True)
class Snapshot:
    """A model at a commit; ``revision`` is the one that was requested and led there."""

    model: str
    revision: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size for file in self.files)


def find_snapshot(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    """Looks up ``model`` at ``revision`` (a branch, a tag or a commit) on the hub, or in offline mode in the cache.

    Of a model that is named with its quantization only those files of GGUF count.

    Raises SourceError if the hub does not answer or denies access, or if the cache lacks the model in offline mode.
    """
    if not hub_cache.is_name(revision):
        raise SourceError(f"{model} has no revision `{revision}`", hint="a branch, a tag or a commit is meant")
    if _is_offline(environ):
        return _cached(environ, model, revision)
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    # What it warns of either ends in an error, which is reported, or succeeds on the second try.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(endpoint=_endpoint(environ), token=_token(environ))
    with translated_errors(environ, model, revision):
        info = api.model_info(hub_cache.repository(model), revision=revision, files_metadata=True)
    if info.sha is None or not hub_cache.is_commit(info.sha):
        raise SourceError(f"{hub_address(environ)} does not say which commit of {model} `{revision}` is")
    files = tuple(
        ModelFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        for sibling in info.siblings or ()
    )
    for file in files:
        _require_safe_path(environ, file)
    return Snapshot(model, revision, info.sha, _of_quantization(model, files))


def _of_quantization(model: str, files: tuple[ModelFile, ...]) -> tuple[ModelFile, ...]:
    """Those of ``files`` that ``model`` is loaded from. Raises SourceError where none is of its quantization."""
    wanted = hub_cache.quantization(model)
    if not wanted:
        return files
    # name-Q4_K_M.gguf, name.Q4_K_M.gguf, name-Q4_K_M-00001-of-00002.gguf, Q4_K_M/…
    pattern = re.compile(rf"(?:.*[/.-])?{re.escape(wanted)}(?:-[0-9]+-of-[0-9]+)?\.gguf", re.IGNORECASE)
    there = {file.path for file in files if file.path.endswith(".gguf")}
    chosen = {path for path in there if pattern.fullmatch(path)}
    if not chosen:
        listed = ", ".join(sorted(there)[:10]) or "none"
        raise SourceError(f"{hub_cache.repository(model)} has no file of {wanted}", hint=f"it has {listed}")
    return tuple(file for file in files if file.path not in there - chosen)


def _require_safe_path(environ: Mapping[str, str], file: ModelFile) -> None:
    """Raises SourceError if a name from the hub, which becomes a path on this disk, would lead elsewhere."""
    if {"", ".", ".."} & set(file.path.split("/")) or not _BLOB.fullmatch(file.blob or "0" * 40):
        raise SourceError(f"{hub_address(environ)} lists a file that nothing can be called: {file.path!r}")


def missing_bytes(environ: Mapping[str, str], snapshot: Snapshot) -> int:
    """Returns the bytes that are still to be downloaded."""
    folder = hub_cache.folder(environ, snapshot.model)
    present = folder / "snapshots" / snapshot.commit
    return sum(
        file.size - bytes_present(folder / "blobs", file.blob)
        for file in snapshot.files
        if not (present / file.path).exists()
    )


def fetch_from_hub(environ: Mapping[str, str], snapshot: Snapshot, count_bytes: CountBytes) -> Path:
    """Downloads the model into the cache, and returns its folder there. ``count_bytes`` is called from several threads
    as bytes arrive; what arrived before an interruption is not fetched again.

    The cache's name for the revision is set last, so that a reader meanwhile gets the old model, complete. Raises
    SourceError.
    """
    from multiprocessing.pool import ThreadPool

    folder = hub_cache.folder(environ, snapshot.model)
    stopped = threading.Event()
    fetch_file = functools.partial(_fetch_file, environ, snapshot, folder, until_stopped(stopped, count_bytes))
    with translated_errors(environ, snapshot.model, snapshot.revision):
        # A ThreadPool, as its threads do not keep the process alive when the user stops it.
        with ThreadPool(_WORKERS) as pool:
            try:
                for _ in pool.imap_unordered(fetch_file, snapshot.files):
                    pass
            finally:
                stopped.set()
        _write_ref(folder, snapshot)
    _remove_stale_parts(folder / "blobs")
    return folder / "snapshots" / snapshot.commit


def _fetch_file(
    environ: Mapping[str, str], snapshot: Snapshot, folder: Path, count_bytes: CountBytes, file: ModelFile
) -> None:
    from huggingface_hub import hf_hub_download, hf_hub_url

    endpoint, token = _endpoint(environ), _token(environ)
    repository = hub_cache.repository(snapshot.model)
    link = folder / "snapshots" / snapshot.commit / file.path
    if link.exists():
        return
    if file.blob and file.size <= LARGEST:
        url = hf_hub_url(repository, file.path, revision=snapshot.commit, endpoint=endpoint)
        remote = RemoteFile(url, file.size, file.blob, token)
        download_file(remote, folder / "blobs", link, count_bytes)
        return
    before = bytes_present(folder / "blobs", file.blob)
    hf_hub_download(
        repository,
        file.path,
        revision=snapshot.commit,
        cache_dir=folder.parent,
        endpoint=endpoint,
        token=token,
    )
    count_bytes(file.size - before)


def _remove_stale_parts(blobs: Path) -> None:
    """Removes the partial files of which the complete file is there by now.

    huggingface_hub gives each of its own downloads another partial file, which stays behind when the process is killed,
    and is never read again.
    """
    for part in blobs.glob(f"*{hub_cache.INCOMPLETE}"):
        if part.with_name(part.name.partition(".")[0]).exists():
            # A container that runs as root leaves parts that the user may not remove.
            with suppress(OSError):
                part.unlink()


def _write_ref(folder: Path, snapshot: Snapshot) -> None:
    """Records the commit that the revision led to. The first revision of a model that is requested by its commit
    becomes ``main``, too: that is what is loaded when no revision is named and the hub is not contacted."""
    name = hub_cache.MAIN if snapshot.revision == snapshot.commit else snapshot.revision
    path = folder / "refs" / name
    if path.exists() and (name != snapshot.revision or path.read_text(encoding="ascii") == snapshot.commit):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not beside it: other programs take every file there for a name.
    with files.beside(folder / path.name) as (file, temporary):
        file.write(snapshot.commit.encode())
        put_file_in_place(file, temporary, path)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    commit = hub_cache.revision(environ, model, revision)
    cached = hub_cache.find_model(environ, model)
    if commit is None or cached is None or cached.incomplete:
        state = "only a part of it is" if cached else "it is not"
        raise ModelUnavailableError(
            f"{model} at `{revision}` is to be taken from the cache (HF_HUB_OFFLINE is set), and {state} there",
            hint="unset HF_HUB_OFFLINE and run this again",
        )
    return Snapshot(model, revision, commit, ())


def _is_offline(environ: Mapping[str, str]) -> bool:
    setting = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return setting.upper() in {"1", "ON", "YES", "TRUE"}


def _endpoint(environ: Mapping[str, str]) -> str | None:
    return environ.get("HF_ENDPOINT", "").rstrip("/") or None


def _token(environ: Mapping[str, str]) -> str | None:
    """Returns the token; with None huggingface_hub takes the one that `hf auth login` stored."""
    return environ.get("HF_TOKEN") or None

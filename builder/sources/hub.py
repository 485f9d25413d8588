"""Looks up and downloads models and files from the Hugging Face hub.

An interrupted download resumes, and every file is verified. Errors contain no token and no login."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO
from urllib.parse import urlsplit

from builder.base import files, http_client, hub_cache, tar_stream
from builder.base.errors import ModelUnavailableError, SourceError, UsageError
from builder.base.files import open_locked_to_append, put_file_in_place
from builder.base.hub_cache import INCOMPLETE
from builder.base.values import dataclass
from builder.sources import git

PUBLIC = "https://huggingface.co"
LARGEST = 50_000_000_000
"""Above this size in bytes, the hub serves a file only over its Xet protocol."""
SHA256_DIGITS = 64

CountBytes = Callable[[int], None]
"""Called with the bytes received since the last call; negative if some have to be fetched again."""

# Files at a time: enough to use the bandwidth, and few enough to leave little unfinished.
_WORKERS = 4
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_AGAIN = "run the command again: the download resumes"


@dataclass(frozen=True)
class ModelFile:
    """A file of a model: its path, its size in bytes, and the id of its content, if the hub gives it: the SHA-256 of a
    file in Git LFS, the SHA-1 that git gives any other file. The cache names contents by it
    (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)."""

    path: str
    size: int
    blob: str | None


@dataclass(frozen=True)
class Snapshot:
    """A model at a commit. ``revision`` is the requested revision."""

    model: str
    revision: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_snapshot(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    """Looks up ``model`` at ``revision`` (a branch, a tag or a commit) on the hub, or in offline mode in the cache. A
    name with a quantization means its GGUF files. Raises SourceError if the hub does not answer or denies access, or if
    the cache lacks the model in offline mode."""
    if not hub_cache.is_name(revision):
        raise SourceError(f"{model} has no revision `{revision}`", hint="name a branch, a tag or a commit")
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    if offline.upper() in {"1", "ON", "YES", "TRUE"}:
        commit, cached = hub_cache.revision(environ, model, revision), hub_cache.find_model(environ, model)
        if commit and cached and not cached.incomplete:
            return Snapshot(model, revision, commit, ())
        state = "holds only a part of" if cached else "does not hold"
        variable = "HF_HUB_OFFLINE" if environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        message = f"{variable} is set, and the cache {state} {model} at `{revision}`"
        raise ModelUnavailableError(message, hint=f"unset {variable} and run the command again")
    endpoint = _endpoint(environ)  # before the import, which reads HF_ENDPOINT, too
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    # Its warnings are not needed: the second try succeeds, or an error is reported.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(endpoint=endpoint, token=_token(environ))
    with translated_errors(environ, model, revision):
        info = api.model_info(
            hub_cache.repository(model), revision=revision, files_metadata=True, timeout=http_client.PIECE_SECONDS
        )
    if info.sha is None or not hub_cache.is_commit(info.sha):
        raise SourceError(f"{_hub_address(environ)} names no commit for the revision `{revision}` of {model}")
    listed = tuple(
        ModelFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        for sibling in info.siblings or ()
    )
    for file in listed:  # names from the hub become paths on this disk
        is_unfit = not file.path.isprintable() or tar_stream.is_unsafe(file.path)
        if is_unfit or not _BLOB.fullmatch(file.blob or "0" * 40):
            raise SourceError(f"{_hub_address(environ)} lists a file with an unsafe name: {file.path!r}")
    return Snapshot(model, revision, info.sha, _of_quantization(model, listed))


def _of_quantization(model: str, listed: tuple[ModelFile, ...]) -> tuple[ModelFile, ...]:
    """The files that ``model`` is loaded from. Raises SourceError if no file has its quantization."""
    wanted = hub_cache.quantization(model)
    if not wanted:
        return listed
    # name-Q4_K_M.gguf, name.Q4_K_M.gguf, name-Q4_K_M-00001-of-00002.gguf, Q4_K_M/…
    pattern = re.compile(rf"(?:.*[/.-])?{re.escape(wanted)}(?:-[0-9]+-of-[0-9]+)?\.gguf", re.IGNORECASE)
    there = {file.path for file in listed if file.path.endswith(".gguf")}
    chosen = {path for path in there if pattern.fullmatch(path)}
    if not chosen:
        hint = f"its GGUF files: {', '.join(sorted(there)[:10]) or 'none'}"
        raise SourceError(f"{hub_cache.repository(model)} has no file with the quantization {wanted}", hint=hint)
    return tuple(file for file in listed if file.path not in there - chosen)


# The download of models into the cache of huggingface_hub. `download_file` fetches most files: huggingface_hub (2.4)
# starts a file again after its process has ended, and weights are files of several GB. huggingface_hub still fetches
# files that only the Xet protocol serves, and files without the ids of their contents.


def missing_bytes(environ: Mapping[str, str], snapshot: Snapshot) -> int:
    folder = hub_cache.folder(environ, snapshot.model)
    present = folder / "snapshots" / snapshot.commit
    return sum(
        file.size - _bytes_present(folder / "blobs", file.blob)
        for file in snapshot.files
        if not (present / file.path).exists()
    )


def fetch_from_hub(environ: Mapping[str, str], snapshot: Snapshot, count_bytes: CountBytes) -> Path:
    """Downloads the model into the cache, and returns its folder there. ``count_bytes`` is called from several threads.
    The cache's name for the revision is set last: until then a reader gets the old model. Raises SourceError."""
    from multiprocessing.pool import ThreadPool

    folder = hub_cache.folder(environ, snapshot.model)
    stopped = threading.Event()
    fetch_file = functools.partial(_fetch_file, environ, snapshot, folder, until_stopped(stopped, count_bytes))
    with translated_errors(environ, snapshot.model, snapshot.revision):
        # The threads of a ThreadPool do not keep the process alive when the user stops it.
        with ThreadPool(_WORKERS) as pool:
            try:
                for _ in pool.imap_unordered(fetch_file, snapshot.files):
                    pass
            finally:
                stopped.set()
        _write_ref(folder, snapshot)
    # huggingface_hub gives each of its own downloads another partial file, which stays behind when the process is
    # killed, and is never read again.
    for part in (folder / "blobs").glob(f"*{INCOMPLETE}"):
        if part.with_name(part.name.partition(".")[0]).exists():
            with suppress(OSError):  # a container that runs as root leaves files that the user cannot remove
                part.unlink()
    return folder / "snapshots" / snapshot.commit


class StoppedError(Exception):
    """The work was stopped: the rest of the file is no longer needed."""


def until_stopped(stopped: threading.Event, count_bytes: CountBytes) -> CountBytes:
    """Returns ``count_bytes`` as a function that raises StoppedError after ``stopped`` is set."""

    def count(more: int) -> None:
        if stopped.is_set():
            raise StoppedError
        count_bytes(more)

    return count


def _fetch_file(
    environ: Mapping[str, str], snapshot: Snapshot, folder: Path, count_bytes: CountBytes, file: ModelFile
) -> None:
    from huggingface_hub import hf_hub_download, hf_hub_url

    endpoint, repository = _endpoint(environ), hub_cache.repository(snapshot.model)
    link = folder / "snapshots" / snapshot.commit / file.path
    if link.exists():
        return
    if file.blob and file.size <= LARGEST:
        url = hf_hub_url(repository, file.path, revision=snapshot.commit, endpoint=endpoint)
        download_file(environ, url, file.size, folder / "blobs" / file.blob, link, count_bytes)
        return
    before = _bytes_present(folder / "blobs", file.blob)
    hf_hub_download(
        repository,
        file.path,
        revision=snapshot.commit,
        cache_dir=folder.parent,
        endpoint=endpoint,
        token=_token(environ),
    )
    count_bytes(file.size - before)


def _bytes_present(blobs: Path, blob: str | None) -> int:
    """Returns the number of bytes of a file in the cache, complete or not; 0 if the id of its content is unknown."""
    for name in (blob, f"{blob}{INCOMPLETE}") if blob else ():
        with suppress(FileNotFoundError):
            return (blobs / name).stat().st_size
    return 0


def _write_ref(folder: Path, snapshot: Snapshot) -> None:
    """Records the commit of the revision. The first commit that is requested by its digits also becomes ``main``, which
    is loaded if no revision is named and the hub is not contacted."""
    name = hub_cache.MAIN if snapshot.revision == snapshot.commit else snapshot.revision
    path = folder / "refs" / name
    if path.exists() and (name != snapshot.revision or path.read_text(encoding="ascii") == snapshot.commit):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not in the same folder: other programs treat every file there as a ref.
    with files.beside(folder / path.name) as (file, temporary):
        file.write(snapshot.commit.encode())
        put_file_in_place(file, temporary, path)


def download_file(
    environ: Mapping[str, str], url: str, size: int, blob: Path, link: Path, count_bytes: CountBytes
) -> None:
    """Downloads a file to ``blob``, whose name is the id of its content, and makes ``link`` point to it. A second
    process waits for the first. Raises SourceError if the content differs, and errors of huggingface_hub."""
    blob.parent.mkdir(parents=True, exist_ok=True)
    if not blob.exists():
        partial = blob.with_name(f"{blob.name}{INCOMPLETE}")
        with os.fdopen(open_locked_to_append(partial), "ab") as partial_file:
            if blob.exists():  # another process was faster
                partial.unlink()
            else:
                _receive(environ, url, size, partial_file, count_bytes)
                partial_file.flush()
                if (received := _content_id(partial, blob.name)) != blob.name:
                    partial.unlink()
                    message = f"{url}: the content has the id {received}, but the hub lists {blob.name}"
                    hint = "run the command again; if the error repeats, a proxy or mirror is at fault"
                    raise SourceError(message, hint=hint)
                put_file_in_place(partial_file, partial, blob)
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(os.path.relpath(blob, link.parent))


def _receive(environ: Mapping[str, str], url: str, size: int, file: BinaryIO, count_bytes: CountBytes) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if file.tell() > size:
        file.truncate(0)
        file.seek(0)
    progress_bar = nullcontext(SimpleNamespace(update=count_bytes))
    http_get(
        url,
        file,
        resume_size=file.tell(),
        headers=build_hf_headers(token=_token(environ)),
        expected_size=size,
        tqdm_class=lambda **_settings: progress_bar,  # type: ignore[arg-type]
    )


def _content_id(path: Path, like: str) -> str:
    """The id of a file's content, of the same kind as ``like``: its SHA-256, or the SHA-1 that git gives it
    (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects#_object_storage)."""
    if len(like) == SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def read_file_range(environ: Mapping[str, str], snapshot: Snapshot, path: str, begin: int, size: int) -> bytes:
    """Returns ``size`` bytes at ``begin`` of a file of a model, fewer at its end. Raises SourceError."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

    if size <= 0:
        return b""
    repository = hub_cache.repository(snapshot.model)
    url = hf_hub_url(repository, path, revision=snapshot.commit, endpoint=_endpoint(environ))
    headers = {
        **build_hf_headers(token=_token(environ)),
        "Range": f"bytes={begin}-{begin + size - 1}",
        "Accept-Encoding": "identity",
    }
    content = bytearray()
    with (
        translated_errors(environ, snapshot.model, snapshot.revision),
        # It cannot send a request again whose answer broke off: the block has begun.
        http_stream_backoff(
            "GET",
            url,
            headers=headers,
            follow_redirects=True,
            max_retries=3,
            retry_on_exceptions=(),
            timeout=http_client.PIECE_SECONDS,
        ) as response,
    ):
        hf_raise_for_status(response)
        if begin and response.status_code != 206:
            raise SourceError(
                f"{_hub_address(environ)} sends only whole files, but a part of {path} of {snapshot.model} is needed",
                hint=f"download the whole model first: `builder download {snapshot.model}`",
            )
        for chunk in response.iter_bytes(1 << 16):
            content += chunk
            if len(content) >= size:
                break
    return bytes(content[:size])


def _endpoint(environ: Mapping[str, str]) -> str | None:
    endpoint = environ.get("HF_ENDPOINT", "").rstrip("/")
    try:
        _ = urlsplit(endpoint).port
    except ValueError as error:
        raise UsageError(f"HF_ENDPOINT is not an address: {error}", hint="correct or unset HF_ENDPOINT") from None
    return endpoint or None


def _hub_address(environ: Mapping[str, str]) -> str:
    return git.split(_endpoint(environ) or PUBLIC).url  # without a login


def _token(environ: Mapping[str, str]) -> str | None:
    """Returns the token; None if huggingface_hub uses the token of `hf auth login`."""
    return environ.get("HF_TOKEN") or None


@contextmanager
def translated_errors(environ: Mapping[str, str], model: str, revision: str) -> Iterator[None]:
    """Translates the errors of huggingface_hub into a SourceError that says what to do."""
    from httpx2 import HTTPError
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        yield
    except (HTTPError, OSError, HFValidationError) as error:
        # huggingface_hub hides the reason behind "not in the cache".
        hidden = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
        cause = hidden if isinstance(hidden, (HTTPError, OSError)) else error
        kind, message, hint = _explained(environ, cause, model, revision)
        for secret in {_token(environ), get_token(), git.split(environ.get("HF_ENDPOINT", "")).secret}:
            message = message.replace(secret, "***") if secret else message
        raise kind(message, hint=hint) from None


def _explained(
    environ: Mapping[str, str], error: Exception, model: str, revision: str
) -> tuple[type[SourceError], str, str]:
    from httpx2 import HTTPError
    from huggingface_hub import errors, get_token

    hub, has_token = _hub_address(environ), bool(_token(environ) or get_token())
    lines = (line.strip() for line in http_client.reason(error).splitlines())
    line = next(filter(None, lines), type(error).__name__)
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if isinstance(error, errors.GatedRepoError):
            message = f"{model} is gated: only accounts that accepted its terms may download it"
            hint = f"accept the terms at {hub}/{model}; then set HF_TOKEN to a token of that account that may read"
            return ModelUnavailableError, message, f"{hint} gated models ({hub}/settings/tokens)"
        if isinstance(error, errors.RevisionNotFoundError):
            hint = f"{hub}/{model}/commits/main lists its revisions"
            return ModelUnavailableError, f"{model} has no revision `{revision}`", hint
        # Without a token the hub answers 401 for an unknown model. huggingface_hub (2.4) reads that as "not found" for
        # https: addresses only; HF_ENDPOINT may name an http: one.
        if isinstance(error, errors.RepositoryNotFoundError) or (status == 401 and not has_token):
            private = "your token may not have access to it" if has_token else "set HF_TOKEN"
            hint = f"check the name; if the model is private, {private}"
            return ModelUnavailableError, f"{hub} has no model `{model}`", hint
        if status == 401:
            # HF_TOKEN also replaces the token that `hf auth login` stored.
            other = "unset it" if _token(environ) else "log in again: `hf auth login`"
            hint = f"set HF_TOKEN to a valid token ({hub}/settings/tokens), or {other}"
            return SourceError, f"{hub} refuses the token", hint
        return SourceError, f"{hub} answers {status}: {line}", f"later, {_AGAIN}"
    if isinstance(error, HTTPError):
        advice = f"check the network, HTTPS_PROXY and HF_ENDPOINT, and {_AGAIN}"
        return SourceError, f"{hub} does not answer: {line}", f"{advice}. HF_HUB_OFFLINE=1 uses only the cache"
    if isinstance(error, OSError) and error.errno:
        hint = f"make room, or make the folder writable; then {_AGAIN}. HF_HOME selects another folder"
        return SourceError, f"{error.filename or model}: {error.strerror}", hint
    return SourceError, f"{model} cannot be downloaded: {line}", _AGAIN

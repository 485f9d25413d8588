"""Download of models from the Hugging Face hub, with huggingface_hub, into its own cache.

Most files are fetched by `file_download`: huggingface_hub (2.4) itself resumes after a lost connection, but starts a
file again after its process has ended, and the weights of a large model are a few files of several GB each. It still
fetches files that only the Xet protocol serves, and those of a mirror that does not list the ids of their contents.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import ModelUnavailableError, SourceError
from builder.sources.huggingface import file_download
from builder.sources.huggingface.errors import hub_address, translated_errors
from builder.storage import huggingface_cache, unfinished_file
from builder.storage.atomic_file import put_in_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.sources.huggingface.file_download import CountBytes

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
    if not huggingface_cache.is_name(revision):
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
        info = api.model_info(huggingface_cache.repository(model), revision=revision, files_metadata=True)
    if info.sha is None or not huggingface_cache.is_commit(info.sha):
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
    wanted = huggingface_cache.quantization(model)
    if not wanted:
        return files
    # name-Q4_K_M.gguf, name.Q4_K_M.gguf, name-Q4_K_M-00001-of-00002.gguf, Q4_K_M/…
    pattern = re.compile(rf"(?:.*[/.-])?{re.escape(wanted)}(?:-[0-9]+-of-[0-9]+)?\.gguf", re.IGNORECASE)
    there = {file.path for file in files if file.path.endswith(".gguf")}
    chosen = {path for path in there if pattern.fullmatch(path)}
    if not chosen:
        listed = ", ".join(sorted(there)[:10]) or "none"
        raise SourceError(f"{huggingface_cache.repository(model)} has no file of {wanted}", hint=f"it has {listed}")
    return tuple(file for file in files if file.path not in there - chosen)


def _require_safe_path(environ: Mapping[str, str], file: ModelFile) -> None:
    """Raises SourceError if a name from the hub, which becomes a path on this disk, would lead elsewhere."""
    if {"", ".", ".."} & set(file.path.split("/")) or not _BLOB.fullmatch(file.blob or "0" * 40):
        raise SourceError(f"{hub_address(environ)} lists a file that nothing can be called: {file.path!r}")


def missing_bytes(environ: Mapping[str, str], snapshot: Snapshot) -> int:
    """Returns the bytes that are still to be downloaded."""
    folder = huggingface_cache.folder(environ, snapshot.model)
    present = folder / "snapshots" / snapshot.commit
    return sum(
        file.size - file_download.bytes_present(folder / "blobs", file.blob)
        for file in snapshot.files
        if not (present / file.path).exists()
    )


def fetch(environ: Mapping[str, str], snapshot: Snapshot, count_bytes: CountBytes) -> Path:
    """Downloads the model into the cache, and returns its folder there. ``count_bytes`` is called from several threads
    as bytes arrive; what arrived before an interruption is not fetched again.

    The cache's name for the revision is set last, so that a reader meanwhile gets the old model, complete. Raises
    SourceError.
    """
    from multiprocessing.pool import ThreadPool

    folder = huggingface_cache.folder(environ, snapshot.model)
    stopped = threading.Event()
    fetch_file = functools.partial(
        _fetch_file, environ, snapshot, folder, file_download.until_stopped(stopped, count_bytes)
    )
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
    repository = huggingface_cache.repository(snapshot.model)
    link = folder / "snapshots" / snapshot.commit / file.path
    if link.exists():
        return
    if file.blob and file.size <= file_download.LARGEST:
        url = hf_hub_url(repository, file.path, revision=snapshot.commit, endpoint=endpoint)
        remote = file_download.RemoteFile(url, file.size, file.blob, token)
        file_download.download(remote, folder / "blobs", link, count_bytes)
        return
    before = file_download.bytes_present(folder / "blobs", file.blob)
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
    for part in blobs.glob(f"*{huggingface_cache.INCOMPLETE}"):
        if part.with_name(part.name.partition(".")[0]).exists():
            # A container that runs as root leaves parts that the user may not remove.
            with suppress(OSError):
                part.unlink()


def _write_ref(folder: Path, snapshot: Snapshot) -> None:
    """Records the commit that the revision led to. The first revision of a model that is requested by its commit
    becomes ``main``, too: that is what is loaded when no revision is named and the hub is not contacted."""
    name = huggingface_cache.MAIN if snapshot.revision == snapshot.commit else snapshot.revision
    path = folder / "refs" / name
    if path.exists() and (name != snapshot.revision or path.read_text(encoding="ascii") == snapshot.commit):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not beside it: other programs take every file there for a name.
    with unfinished_file.beside(folder / path.name) as (file, temporary):
        file.write(snapshot.commit.encode())
        put_in_place(file, temporary, path)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    commit = huggingface_cache.revision(environ, model, revision)
    cached = huggingface_cache.find_model(environ, model)
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

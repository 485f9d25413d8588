"""Models from the Hugging Face hub, by huggingface_hub, into its own cache.

Files come by `huggingface_file`: huggingface_hub (2.4) itself goes on after a lost connection, but begins a file anew
where a process was ended, and the weights of a large model are a few files of several GB each. What is left to it are
files that only the Xet protocol gives, and those of a mirror that does not list the ids of their contents.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources.huggingface import file_download
from builder.sources.huggingface.errors import hub_address, translated_errors
from builder.storage import huggingface_cache
from builder.storage.atomic_file import put_in_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.sources.huggingface.file_download import CountBytes

# Files at a time: enough to fill a line, and few to be left half done.
_WORKERS = 4
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelFile:
    """A file of a model: its path, its size in bytes, and the id of its content, where the hub says it."""

    path: str
    size: int
    blob: str | None


@dataclass(frozen=True)
class Snapshot:
    """A model as it was at a commit; ``revision`` is what was asked for and led there."""

    model: str
    revision: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """All bytes of it."""
        return sum(file.size for file in self.files)


def find_snapshot(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    """What the hub has of ``model`` at ``revision`` (a branch, a tag or a commit).

    In offline mode what the cache has is taken for it. Raises SourceError where the hub does not answer or does not
    let the person in, and where the cache lacks the model in offline mode.
    """
    if not huggingface_cache.is_name(revision):
        raise SourceError(f"{model} has no revision `{revision}`", hint="a branch, a tag or a commit is meant")
    if _is_offline(environ):
        return _cached(environ, model, revision)
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    # What it warns of ends in an error that is told, or goes well the second time.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi(endpoint=_endpoint(environ), token=_token(environ))
    with translated_errors(environ, model, revision):
        info = api.model_info(model, revision=revision, files_metadata=True)
    if info.sha is None or not huggingface_cache.is_commit(info.sha):
        raise SourceError(f"{hub_address(environ)} does not say which commit of {model} `{revision}` is")
    files = tuple(
        ModelFile(sibling.rfilename, sibling.size or 0, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id)
        for sibling in info.siblings or ()
    )
    for file in files:
        _require_safe_path(environ, file)
    return Snapshot(model, revision, info.sha, files)


def _require_safe_path(environ: Mapping[str, str], file: ModelFile) -> None:
    """A name from the hub becomes a path on this disk."""
    if {"", ".", ".."} & set(file.path.split("/")) or not _BLOB.fullmatch(file.blob or "0" * 40):
        raise SourceError(f"{hub_address(environ)} lists a file that nothing can be called: {file.path!r}")


def missing_bytes(environ: Mapping[str, str], snapshot: Snapshot) -> int:
    """The bytes that are still to come."""
    folder = huggingface_cache.folder(environ, snapshot.model)
    present = folder / "snapshots" / snapshot.commit
    return sum(
        file.size - file_download.bytes_present(folder / "blobs", file.blob)
        for file in snapshot.files
        if not (present / file.path).exists()
    )


def fetch(environ: Mapping[str, str], snapshot: Snapshot, count_bytes: CountBytes) -> Path:
    """Brings the model into the cache, and returns its folder there. ``amount`` is told of bytes as they arrive, by
    several threads; what arrived before a break is not asked for again.

    The cache's name for the revision is set last: whoever reads it meanwhile has the old model, whole.
    Raises SourceError.
    """
    from multiprocessing.pool import ThreadPool

    folder = huggingface_cache.folder(environ, snapshot.model)
    stopped = threading.Event()
    fetch_file = functools.partial(
        _fetch_file, environ, snapshot, folder, file_download.until_stopped(stopped, count_bytes)
    )
    with translated_errors(environ, snapshot.model, snapshot.revision):
        # Its threads do not keep the process when the person stops it, whatever they wait for.
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
    link = folder / "snapshots" / snapshot.commit / file.path
    if link.exists():
        return
    if file.blob and file.size <= file_download.LARGEST:
        url = hf_hub_url(snapshot.model, file.path, revision=snapshot.commit, endpoint=endpoint)
        remote = file_download.RemoteFile(url, file.size, file.blob, token)
        file_download.download(remote, folder / "blobs", link, count_bytes)
        return
    before = file_download.bytes_present(folder / "blobs", file.blob)
    hf_hub_download(
        snapshot.model,
        file.path,
        revision=snapshot.commit,
        cache_dir=folder.parent,
        endpoint=endpoint,
        token=token,
    )
    count_bytes(file.size - before)


def _remove_stale_parts(blobs: Path) -> None:
    """Takes away the parts of files that are whole by now.

    huggingface_hub gives each download of its own a further part, which stays where the process is killed and is never
    read again.
    """
    for part in blobs.glob(f"*{huggingface_cache.INCOMPLETE}"):
        if part.with_name(part.name.partition(".")[0]).exists():
            # A container that runs as root leaves parts that are not the person's to remove.
            with suppress(OSError):
                part.unlink()


def _write_ref(folder: Path, snapshot: Snapshot) -> None:
    """Writes down which commit the revision led to. A first model that was asked for by its commit becomes ``main`` as
    well: that is what is loaded where nobody names a revision and no hub is asked."""
    name = huggingface_cache.MAIN if snapshot.revision == snapshot.commit else snapshot.revision
    path = folder / "refs" / name
    if path.exists() and (name != snapshot.revision or path.read_text(encoding="ascii") == snapshot.commit):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{path.name}.{threading.get_native_id()}"
    # Not beside it: other programs take every file there for a name.
    with temporary.open("wb") as file:
        file.write(snapshot.commit.encode())
        put_in_place(file, temporary, path)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> Snapshot:
    commit = huggingface_cache.revision(environ, model, revision)
    cached = huggingface_cache.held(environ, model)
    if commit is None or cached is None or cached.incomplete:
        state = "only a part of it is" if cached else "it is not"
        raise SourceError(
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
    """None lets huggingface_hub take what `hf auth login` kept."""
    return environ.get("HF_TOKEN") or None

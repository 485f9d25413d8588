"""The headers of a source's files of weights, read and held against its index."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from builder.checkpoints.planning import header, index
from builder.checkpoints.planning.header import Header, HeaderError
from builder.checkpoints.planning.tensor_table import SourceListing
from builder.checkpoints.record import is_file_name
from builder.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.checkpoints.source_files import SourceContents

_SUFFIX = ".safetensors"
# Most headers fit in, so that the Hub is asked once for each file.
_FIRST = 1 << 19
_WORKERS = 8
_MOST_NAMES = 5
_MOST_TENSORS = 1_000_000
# The files are read side by side, and taken apart one after the other: that takes many times their bytes of memory.
_PARSING = Lock()


def read(source: SourceContents, further: Iterable[str]) -> SourceListing:
    """Reads the headers of the files that a source's index lists (of all its files of weights where it has none), and
    of ``further`` files, as far as they are there.

    Raises SourceError for a file that is damaged, for a tensor that two files have, and for an index that names what
    is not there.
    """
    from concurrent.futures import ThreadPoolExecutor

    usable = {path for path in source.sizes if is_file_name(path)}
    weights = sorted(path for path in usable if path.endswith(_SUFFIX))
    in_index = _index(source)
    listed = sorted(set(in_index.values())) if in_index is not None else weights
    if missing := [path for path in listed if path not in usable]:
        raise _bad(source, index.NAME, f"it names files that are not there: {_listed(missing)}")
    if not listed:
        raise SourceError(f"{source.requested} has no safetensors files", hint="other formats are not read")
    wanted = sorted({*listed, *(path for path in further if path in usable)})
    headers: dict[str, Header] = {}
    pool = ThreadPoolExecutor(_WORKERS)
    try:
        tensors = 0
        for path, read_one in zip(wanted, pool.map(lambda path: read_header(source, path), wanted), strict=True):
            headers[path] = read_one
            tensors += len(read_one.tensors)
            if tensors > _MOST_TENSORS:
                message = f"with those before it has {tensors:,} tensors, and at most {_MOST_TENSORS:,} are read"
                raise _bad(source, path, message)
    finally:  # after ^C nothing is waited for
        pool.shutdown(wait=False, cancel_futures=True)
    _require_agreement(source, headers, listed, in_index)
    others = {path: source.sizes[path] for path in sorted(usable.difference(weights))}
    return SourceListing(headers, tuple(listed), others)


def read_header(source: SourceContents, path: str) -> Header:
    """Reads the header of one file. Raises SourceError."""
    size = source.sizes[path]
    try:
        content = source.read(path, 0, min(size, _FIRST))
        count = header.length(content[: header.PREFIX], size)
        end = header.PREFIX + count
        if len(content) < end:
            content += source.read(path, len(content), end - len(content))
        if len(content) < end:
            raise HeaderError("it ends before its header does: it was cut off")  # noqa: TRY301
        with _PARSING:
            return header.parse(content[header.PREFIX : end], size)
    except HeaderError as error:
        raise _bad(source, path, str(error)) from None


def _index(source: SourceContents) -> dict[str, str] | None:
    if index.NAME not in source.sizes:
        return None
    if source.sizes[index.NAME] > index.LARGEST:
        raise _bad(source, index.NAME, f"it has more than {index.LARGEST:,} bytes")
    try:
        return index.parse(source.read(index.NAME, 0, index.LARGEST))
    except HeaderError as error:
        raise _bad(source, index.NAME, str(error)) from None


def _require_agreement(
    source: SourceContents, headers: dict[str, Header], listed: list[str], in_index: dict[str, str] | None
) -> None:
    places: dict[str, str] = {}
    for path in listed:
        for tensor in headers[path].tensors:
            if tensor.name in places:
                raise _bad(source, path, f"`{tensor.name}` is in {places[tensor.name]} as well")
            places[tensor.name] = path
    missing = [f"{name} in {path}" for name, path in (in_index or {}).items() if places.get(name) != path]
    if missing:
        raise _bad(source, index.NAME, f"it names {len(missing)} tensors that are not there: {_listed(missing)}")


def _bad(source: SourceContents, path: str, message: str) -> SourceError:
    hint = "the source is damaged or not whole: fetch it again, or name another in checkpoint.yaml"
    return SourceError(f"{source.shown(path)}: {message}", hint=hint)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(sorted(names)[:_MOST_NAMES])}{more}"

"""Empty volumes as marks in the engine: a name that only one can create, and labels that say whose it is.

The engine has no "tag if there is none", but for a volume its create request is one: of several that ask for a name at
the same time one makes it, and all get the labels of that one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.engine.client.api import quoted, request
from builder.engine.client.errors import EngineHTTPError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.engine.client.endpoint import Endpoint


def create(endpoint: Endpoint, name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Creates the volume ``name`` unless there is one; returns the labels of the one that there is now."""
    try:
        volume = request(endpoint, "POST", "/volumes/create", body={"Name": name, "Labels": dict(labels)})
    except EngineHTTPError as error:
        if not error.is_conflict:  # some engines refuse the second one, in place of answering with the first
            raise
        return find(endpoint, name) or {}
    return volume.get("Labels") or {}


def find(endpoint: Endpoint, name: str) -> Mapping[str, str] | None:
    """Returns the labels of a volume; None where there is none of that name."""
    try:
        return request(endpoint, "GET", f"/volumes/{quoted(name)}").get("Labels") or {}
    except EngineHTTPError as error:
        if error.is_not_found:
            return None
        raise


def labelled(endpoint: Endpoint, labels: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Returns the labels of each volume that has all of ``labels`` (``key`` or ``key=value``), by its name."""
    query = {"filters": json.dumps({"label": list(labels)})}
    volumes = (request(endpoint, "GET", "/volumes", query=query) or {}).get("Volumes") or ()
    return {volume["Name"]: volume.get("Labels") or {} for volume in volumes}


def remove(endpoint: Endpoint, name: str) -> bool:
    """Removes a volume; False where there is none of that name, or a container uses it."""
    try:
        request(endpoint, "DELETE", f"/volumes/{quoted(name)}")
    except EngineHTTPError as error:
        if error.is_not_found or error.is_conflict:
            return False
        raise
    return True

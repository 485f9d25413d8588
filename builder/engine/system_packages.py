"""The packages of the distribution in an image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.engine import containers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.engine.client.endpoint import Endpoint

# dpkg-query(1): of the packages that are installed whole, `name:arch` where several processors' are there.
_LIST = ("dpkg-query", "--show", "--showformat", r"${db:Status-Abbrev}\t${binary:Package}\t${Version}\n")
_SECONDS = 60.0
# Of both the names and the versions: deb-control(5), deb-version(7).
_WORD = re.compile("[A-Za-z0-9][A-Za-z0-9.+:~-]*")


def read(endpoint: Endpoint, image: str, labels: Mapping[str, str], platform: str = "") -> dict[str, str]:
    """Returns the versions of the Debian packages in ``image`` by their names; none where it has no dpkg, or its
    programs do not run here. Raises ImageStateError for a missing image, and BuildFailedError where it does not
    answer."""
    with containers.running(endpoint, image, labels=labels, platform=platform) as container:
        if not containers.can_execute(container):
            return {}
        result = container.run(_LIST, timeout=_SECONDS)
    if result.exit_code:
        return {}
    rows = (line.split("\t") for line in result.output.splitlines() if line.startswith("ii "))
    return {row[1]: row[2] for row in rows if len(row) == 3 and all(map(_WORD.fullmatch, row[1:]))}

"""The private engine's socket, which gives whoever may use it the rights of root."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import registries, shared

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint


@pytest.mark.engine
def test_the_socket_is_for_root_alone_whatever_groups_there_are(endpoint: Endpoint, tmp_path: Path) -> None:
    # dockerd gives its socket to the group `docker` where there is one.
    groups = tmp_path / "group"
    groups.write_text(f"{Path('/etc/group').read_text()}docker:x:4711:nobody\n")
    mount = f'mount --bind "{groups}" /etc/group && exec "$@"'
    with registries.node(*shared.bridge(12), prefix=("unshare", "--mount", "sh", "-c", mount, "-")) as node:
        socket = Path(node.host.removeprefix("unix://"))
        state = socket.stat()
        assert stat.S_ISSOCK(state.st_mode)
        assert (state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)) == (0, 0, 0o660)
        assert not socket.parent.stat().st_mode & 0o022

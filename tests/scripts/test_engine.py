"""The private engine: who may use its socket, which gives the rights of root, and its start after a crash."""

from __future__ import annotations

import fcntl
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import registries, shared
from tests.commands import second_engine
from tests.conftest import SCRIPTS

if TYPE_CHECKING:
    from builder.engine.client import Endpoint


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


@pytest.mark.long
@pytest.mark.engine
def test_it_is_started_again_where_the_database_of_the_one_before_is_in_use(
    endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # dockerd gives up a containerd that is not ready within 15 seconds. Its sockets want a short path.
    folder = tmp_path_factory.mktemp("engine")
    with second_engine.running(folder, *shared.bridge(13)) as environ:
        second_engine.engine(environ, "down")
        database = folder / "home/data/containerd/daemon/io.containerd.metadata.v1.bolt/meta.db"
        with database.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            up = subprocess.Popen([SCRIPTS / "engine", "up"], env=environ, stderr=subprocess.PIPE, text=True)
            log = folder / "home/log/dockerd.log"
            while "timeout waiting for containerd" not in (log.read_text() if log.exists() else ""):
                assert up.poll() is None, up.communicate()
                time.sleep(0.2)
        _, told = up.communicate(timeout=600)
        assert up.returncode == 0, told
        assert "containerd was not ready after 15 seconds; trying again" in told
        assert "is running" in told

"""The folder of an engine's images, from what engines say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.engine import machine

CLASSIC = {"DriverStatus": [["Backing Filesystem", "extfs"]]}
CONTAINERD = {"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
OWN = {"Containerd": {"Address": "/var/run/docker/containerd/containerd.sock"}}
SYSTEM = {"Containerd": {"Address": "/run/containerd/containerd.sock"}}


@pytest.mark.parametrize(
    ("info", "settings", "folder"),
    [
        (CLASSIC | SYSTEM, "", "/mnt/docker"),
        (CONTAINERD | OWN, "", "/mnt/docker"),
        (CONTAINERD, "", "/mnt/docker"),  # engines before 27.1 do not name their containerd
        (CONTAINERD | SYSTEM, None, "/var/lib/containerd"),
        (CONTAINERD | SYSTEM, 'disabled_plugins = ["cri"]\n', "/var/lib/containerd"),
        (CONTAINERD | SYSTEM, 'root = "/mnt/layers"\n', "/mnt/layers"),
        (CONTAINERD | SYSTEM, "root = \n", "/var/lib/containerd"),
    ],
)
def test_free_space_is_measured_where_layers_are(
    tmp_path: Path, info: dict[str, Any], settings: str | None, folder: str
) -> None:
    file = tmp_path / "config.toml"
    if settings is not None:
        file.write_text(settings)
    assert machine.images_folder({"DockerRootDir": "/mnt/docker", **info}, file) == folder

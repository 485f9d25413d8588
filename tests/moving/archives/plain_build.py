"""A small build directory as this program writes it, without a plan of a shipped definition."""

from __future__ import annotations

import json
from typing import Any

from builder.plan import making
from builder.plan.making import steps_file
from builder.plan.plan_model import StagedFile, Step

PLATFORM = "linux/amd64"
STEPS = (Step("Dockerfile", {"text": "0"}), Step("mod a", {"files": "0"}))
FILES = {
    "Dockerfile": StagedFile(b"FROM scratch\n"),
    "bake.json": making.bake_file({"image": making.bake_target(PLATFORM, 0, {}, None, records_packages=False)}),
    "images.lock": StagedFile(b"version: 3\n...\n"),
    "mods/a/run.sh": StagedFile(b"true\n", executable=True),
    "plan.json": steps_file(STEPS),
}


def with_bake_file(**changes: Any) -> dict[str, StagedFile]:
    """The files, with changes in the target of the image; the key ``variable`` stands beside the targets."""
    document = json.loads(FILES["bake.json"].content)
    document["target"]["image"].update({key: value for key, value in changes.items() if key != "variable"})
    document.update({key: value for key, value in changes.items() if key == "variable"})
    return {**FILES, "bake.json": StagedFile(json.dumps(document).encode())}

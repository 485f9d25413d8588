"""What is asked of an image that was built: its layers, and what Python in it answers."""

from __future__ import annotations

import json
from typing import Any

from builder.engine import images
from builder.engine.client import Endpoint
from tests.cpu_image import run_in


def layers(endpoint: Endpoint, image: str) -> tuple[str, ...]:
    """The digests of the image's layers, the lowest first."""
    found = images.inspect_image(endpoint, image)
    assert found is not None
    return found.layers


def answer(endpoint: Endpoint, image: str, code: str) -> Any:
    """The JSON that Python code printed last, in a container of ``image``."""
    return json.loads(run_in(endpoint, image, ["python3", "-c", code], {}).splitlines()[-1])

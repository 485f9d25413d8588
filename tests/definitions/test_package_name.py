from __future__ import annotations

import pytest
from packaging.utils import canonicalize_name

from builder.definitions.fields import canonical


@pytest.mark.parametrize("name", ["vllm", "Flash_QLA", "apache.tvm--ffi", "a-_.b", "A"])
def test_a_name_is_spelled_as_packaging_does(name: str) -> None:
    assert canonical(name) == canonicalize_name(name)

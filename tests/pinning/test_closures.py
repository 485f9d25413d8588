from __future__ import annotations

import pytest

from builder.base.errors import SourceError
from builder.pins import pinning


def test_packages_built_from_source_are_not_resolved() -> None:
    named = ("torch==2.10.0", "flashinfer-python==0.6.7 ; platform_machine == 'x86_64'", "FlashInfer_Cubin", "numba")
    assert pinning.without(named, {"flashinfer-python", "flashinfer-cubin"}) == ("torch==2.10.0", "numba")


def test_a_line_that_is_no_requirement_is_named() -> None:
    with pytest.raises(SourceError, match="`git\\+https://example.org/x` is not a requirement"):
        pinning.without(("torch", "git+https://example.org/x"), set())

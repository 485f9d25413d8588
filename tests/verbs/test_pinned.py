from __future__ import annotations

from builder import pinned


def test_what_is_built_from_source_is_not_asked_of_the_index() -> None:
    named = ("torch==2.10.0", "flashinfer-python==0.6.7 ; platform_machine == 'x86_64'", "FlashInfer_Cubin", "numba")
    assert pinned.without(named, {"flashinfer-python", "flashinfer-cubin"}) == ("torch==2.10.0", "numba")

from __future__ import annotations

from builder.cli import output


def test_a_table_fits_its_columns_and_folds_the_last() -> None:
    rows = [("vllm-node-tf5:7", "good", "Org/Model-One, Org/Model-Two"), ("x:1", "bad", "-")]
    assert output.lines(("IMAGE", "STATUS", "MODELS"), rows, 42) == [
        "IMAGE            STATUS  MODELS",
        "vllm-node-tf5:7  good    Org/Model-One,",
        "                         Org/Model-Two",
        "x:1              bad     -",
    ]

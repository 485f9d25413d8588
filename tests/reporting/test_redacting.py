"""The page for strangers: nothing of the owner's machines or hand is in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.commands import report
from builder.events import ignore
from builder.reporting import collecting, html, redacting
from tests.evidence.runs import MODEL
from tests.reporting import stocked

if TYPE_CHECKING:
    from pathlib import Path


def test_notes_paths_and_origins_are_left_out(tmp_path: Path) -> None:
    project = stocked.fill(stocked.make(tmp_path))
    page = redacting.redacted(collecting.collect(project, {}, ignore))
    for text in (html.render(page), report.data(page)):
        for secret in ("alert(1)", "recipes/", "evidence/small", "archive", str(tmp_path)):
            assert secret not in text.replace("<code>evidence/</code>", ""), secret
        assert MODEL in text
    assert "left out" in html.render(page)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("spark-3.lan:5000/team/vllm-node:7", "team/vllm-node:7"),
        ("localhost/vllm:1", "vllm:1"),
        ("/srv/models/secret-llama", "secret-llama"),
        ("~/models/m", "m"),
        ("Org/Model-1B", "Org/Model-1B"),
        ("vllm-node-tf5:7", "vllm-node-tf5:7"),
    ],
)
def test_names_lose_hosts_and_folders(tmp_path: Path, name: str, shown: str) -> None:
    page = collecting.collect(stocked.make(tmp_path), {}, ignore)
    named = replace(page, models=(replace(page.models[0], model=name, image=name),), images=(), concerns=())
    assert redacting.redacted(named).models[0].model == shown
    assert redacting.redacted(named).models[0].image == shown


def test_figures_stay_as_they_are(tmp_path: Path) -> None:
    page = collecting.collect(stocked.fill(stocked.make(tmp_path)), {}, ignore)
    before, after = (
        [run.figures for model in each.models for step in model.history for run in step.runs]
        for each in (page, redacting.redacted(page))
    )
    assert before == after
    assert json.loads(report.data(redacting.redacted(page)))["redacted"] is True

"""The cache is read where Hugging Face's own variables say, and never beyond a model's folder."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.base import hub_cache
from builder.base.hub_cache import CachedModel
from tests import hubcache
from tests.hubcache import COMMIT, OTHER

if TYPE_CHECKING:
    from pathlib import Path


MODEL = "Org/Model-1B"


@pytest.mark.parametrize(
    "environ",
    [
        {"HOME": "/home/ann"},
        {"HOME": "/home/ann", "XDG_CACHE_HOME": "/var/cache/ann"},
        {"HOME": "/home/ann", "HF_HOME": "/data/hf"},
        {"HOME": "/home/ann", "HF_HOME": "~/hf"},
        {"HOME": "/home/ann", "HF_HOME": "/data/hf", "HF_HUB_CACHE": "/data/models"},
        {"HOME": "/home/ann", "HF_HUB_CACHE": "~/models"},
        {"HOME": "/home/ann", "HUGGINGFACE_HUB_CACHE": "/data/old"},
    ],
)
def test_it_is_where_huggingface_hub_looks(environ: dict[str, str]) -> None:
    script = "from huggingface_hub import constants as c; print(c.HF_HOME, c.HF_HUB_CACHE)"
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hub_cache.home(environ)), str(hub_cache.hub(environ))]


def test_the_revision_of_a_name(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    assert hub_cache.revision(environ, MODEL) is None
    hubcache.add(tmp_path, MODEL)
    folder = hubcache.add(tmp_path, MODEL, OTHER, ref="refs/pr/5")
    assert hub_cache.revision(environ, MODEL) == COMMIT
    assert hub_cache.revision(environ, MODEL, "refs/pr/5") == OTHER
    assert hub_cache.revision(environ, MODEL, OTHER) == OTHER
    assert hub_cache.revision(environ, MODEL, "3" * 40) is None
    assert hub_cache.revision(environ, MODEL, "v1") is None
    # A name whose files were removed, and one that holds something else.
    (folder / "refs/gone").write_text("4" * 40)
    (folder / "refs/odd").write_bytes(b"\xff../..")
    assert hub_cache.revision(environ, MODEL, "gone") is None
    assert hub_cache.revision(environ, MODEL, "odd") is None
    assert hub_cache.revision(environ, MODEL, "refs") is None


def test_names_do_not_lead_out_of_the_cache(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    hubcache.add(tmp_path, MODEL)
    (tmp_path / "main").write_text(COMMIT)
    assert hub_cache.revision(environ, MODEL, "../../../main") is None
    assert hub_cache.revision(environ, MODEL, str(tmp_path / "main")) is None
    assert hub_cache.revision(environ, "../Model") is None
    assert hub_cache.find_model(environ, f"{tmp_path}/hub") is None


@pytest.mark.parametrize("text", ["gpt2", "Qwen/Qwen3-0.6B", "a/b_c.d", "a/b-GGUF:Q4_K_M"])
def test_names_of_models(text: str) -> None:
    assert hub_cache.is_id(text)


@pytest.mark.parametrize(
    "text", ["", "/models/mine", "./mine", "a/b/c", "a--b", "a/..", "a b", "a/b\n", "x" * 97, "a/b:7", "a/b:"]
)
def test_what_is_no_name_of_a_model(text: str) -> None:
    assert not hub_cache.is_id(text)


def test_quantizations_of_a_model_share_its_folder(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    hubcache.add(tmp_path, MODEL)
    assert hub_cache.revision(environ, f"{MODEL}:Q4_K_M") == COMMIT
    assert hub_cache.find_model(environ, f"{MODEL}:Q8_0") == hub_cache.find_model(environ, MODEL)
    assert (hub_cache.quantization(f"{MODEL}:Q4_K_M"), hub_cache.quantization(MODEL)) == ("Q4_K_M", "")


def test_what_is_held(tmp_path: Path) -> None:
    environ = {"HF_HOME": str(tmp_path)}
    assert hub_cache.find_model(environ, MODEL) is None
    folder = hubcache.add(tmp_path, MODEL, content=b"12345")
    assert hub_cache.find_model(environ, MODEL) == CachedModel(5, COMMIT, incomplete=False)
    # As huggingface_hub 2 keeps what several models share, and what it leaves behind when it is killed.
    shared = tmp_path / "hub/blobs/ab/abc"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(b"1234567")
    (folder / "blobs/f00").symlink_to("../../blobs/ab/abc")
    (folder / "blobs/f00.0badf00d.incomplete").write_bytes(b"1")
    assert hub_cache.find_model(environ, MODEL) == CachedModel(13, COMMIT, incomplete=False)
    (folder / "blobs/f01.incomplete").write_bytes(b"12")
    assert hub_cache.find_model(environ, MODEL) == CachedModel(15, COMMIT, incomplete=True)
    shared.unlink()
    assert hub_cache.find_model(environ, MODEL) == CachedModel(8, COMMIT, incomplete=True)
    (folder / "refs/main").unlink()
    assert hub_cache.find_model(environ, MODEL) == CachedModel(8, None, incomplete=True)

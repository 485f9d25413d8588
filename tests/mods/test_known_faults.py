"""The faults that the community patches vLLM for on this chip, looked for in the source of vLLM's releases:
docs/image-contents.md says which releases have them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from packaging.specifiers import SpecifierSet

from builder.definitions import advisories
from builder.lock import lock_file
from builder.serving import server_log
from tests import projects, shipped_files
from tests.mods.releases import VLLM, Releases

pytestmark = pytest.mark.slow

Sources = Mapping[str, str]

PAGE = projects.REPOSITORY_ROOT / "docs/image-contents.md"
RELEASES = VLLM[VLLM.index("0.21.0") :]
LAYERS = "vllm/model_executor/layers"
GPTQ = (f"{LAYERS}/quantization/gptq_marlin.py", f"{LAYERS}/quantization/auto_gptq.py")
DRAFTER = "vllm/v1/spec_decode/llm_base_proposer.py"
MINIMAX = f"{LAYERS}/minimax_rms_norm/rms_norm_tp.py"
INDEXER = (f"{LAYERS}/sparse_attn_indexer.py", f"{LAYERS}/indexer_topk.py")
ATTENTION = f"{LAYERS}/attention/attention.py"
MEMORY = "vllm/utils/mem_utils.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def no_clean_up(sources: Sources) -> bool:
    """What profiling held is still there when the KV cache is sized, or when CUDA graphs have been tried out."""
    after = sources[MEMORY].partition("    yield result\n")[2]
    runner = sources[RUNNER]
    cleaning = runner[runner.index("def _cleanup_profiling_kv_cache") : runner.index("Cleaned up profiling")]
    measured = after.index("after_profile.measure()")
    return not (
        "empty_cache()" in after[:measured] and "gc.collect()" in after[:measured] and "empty_cache()" in cleaning
    )


def page_cache_counts(sources: Sources) -> bool:
    """Memory that the page cache holds counts as used, although the GPU may have it."""
    return "psutil.virtual_memory().available" not in sources[MEMORY]


def zero_points_of_symmetric(sources: Sources) -> bool:
    """Zero points reach the kernel of the experts where there are none."""
    text = "".join(sources.get(path, "") for path in GPTQ)
    return 'w1_zp=getattr(layer, "w13_qzeros", None),' in text or "w1_zp=" not in text


def guard_of_widths_for_all(sources: Sources) -> bool:
    """Gemma 4's drafter keeps an embedding of its own width, which its next layer does not take."""
    return "            if share_embeddings:\n                draft_embed" in sources[DRAFTER]


def no_way_back_from_ipc(sources: Sources) -> bool:
    """A model of MiniMax does not load where the GPUs are in two machines."""
    text = sources.get(MINIMAX, "")
    return "get_allreduce_workspace" in text and "Falling back to the eager" not in text


def cooperative_on_sm12x(sources: Sources) -> bool:
    """A kernel is chosen for DeepSeek's sparse attention that does not start on this chip."""
    text = "".join(sources.get(path, "") for path in INDEXER)
    return "cooperative_topk" in text and not re.search(r"capability_family\(120\)", text)


def windows_start_from_the_primary_block(sources: Sources) -> bool:
    """A drafter with sliding windows asks for the model's block size, and not for the smallest that its kernel runs."""
    return "page_budget = shared_page or sw_per_token * block_size" in sources.get(ATTENTION, "")


DRAFTER_BLOCKS = "DFlash: large blocks for a drafter with sliding windows"
FAULTS: dict[str, Callable[[Sources], bool]] = {
    "KV cache sized before profiling is cleaned up": no_clean_up,
    "page cache counted as used": page_cache_counts,
    "GPTQ: zero points of symmetric experts": zero_points_of_symmetric,
    "Gemma 4 MTP: embedding not shared": guard_of_widths_for_all,
    "MiniMax: QK norm by CUDA IPC across machines": no_way_back_from_ipc,
    "DeepSeek: cooperative top-k on SM12x": cooperative_on_sm12x,
    DRAFTER_BLOCKS: windows_start_from_the_primary_block,
}


@pytest.fixture(scope="module")
def having(released: Releases) -> dict[str, list[str]]:
    """The releases that have each fault."""
    files = (*GPTQ, DRAFTER, MINIMAX, *INDEXER, ATTENTION, MEMORY, RUNNER)
    with ThreadPoolExecutor(8) as pool:
        sources = dict(zip(RELEASES, pool.map(lambda v: released.texts("vllm", v, files), RELEASES), strict=True))
    return {fault: [version for version in RELEASES if has(sources[version])] for fault, has in FAULTS.items()}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_page_names_the_releases_that_have_it(having: dict[str, list[str]], fault: str) -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {fault} |"))
    listed = row.split("|")[2].strip()
    told = [] if listed == "none" else [version for version in RELEASES if version in SpecifierSet(listed)]
    assert having[fault] == told


@pytest.mark.parametrize(
    ("fault", "advisory"),
    [
        ("Gemma 4 MTP: embedding not shared", "gemma-4-mtp-embedding"),
        ("MiniMax: QK norm by CUDA IPC across machines", "minimax-qk-norm-ipc"),
        ("DeepSeek: cooperative top-k on SM12x", "deepseek-top-k-sm12x"),
        (DRAFTER_BLOCKS, "dflash-large-blocks"),
    ],
)
def test_the_advisories_tell_the_same_releases(having: dict[str, list[str]], fault: str, advisory: str) -> None:
    (versions,) = (each.affects["vllm"] for each in advisories.shipped_advisories() if each.id == advisory)
    assert having[fault] == [each for each in RELEASES if each in SpecifierSet(versions)]


def test_no_cubin_of_the_pinned_flashinfer_is_for_this_chip(released: Releases) -> None:
    """Its package of cubins downloads what this file names."""
    lock = lock_file.read_lock(shipped_files.project().lock)
    for definition in ("tf5", "dflash"):
        version = lock.pins_of(definition, "linux/arm64").sources["flashinfer"].version
        text = released.text("flashinfer-python", version, "flashinfer/artifacts.py")
        named = set(re.findall(r"sm_?([0-9]{2,3})[a-z]?\b", text, re.IGNORECASE))
        assert {"100", "103", "110"} <= named, version
        assert not [architecture for architecture in named if architecture.startswith("12")], version


@pytest.mark.parametrize(("version", "reads"), [("0.2.0", False), ("0.2.1", True), ("0.2.2", True)])
def test_the_releases_of_the_loader_that_count_the_page_cache(released: Releases, version: str, *, reads: bool) -> None:
    text = released.text("instanttensor", version, "instanttensor/_impl.py")
    assert ("MemAvailable" in text) == reads
    # What it raises is what a crash is told by.
    raised = [each.exc for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Raise) and each.exc]
    told = [written for each in raised if "device memory budget" in (written := sentence(each)).lower()]
    assert len(told) == 2
    for each in told:
        cause = server_log.known_crash_cause([f"RuntimeError: {each}"])
        assert cause, each
        assert "InstantTensor before 0.2.1" in cause.hint


def sentence(raised: ast.expr) -> str:
    """The text of an exception, with 1 for each value in it."""
    parts = [part for each in ast.walk(raised) if isinstance(each, ast.JoinedStr) for part in each.values]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts)


def test_no_shipped_pin_is_of_a_release_that_has_one(having: dict[str, list[str]]) -> None:
    """But for that of drafters: no shipped recipe meets it (`tests/definitions/test_advisories.py`)."""
    pinned = lock_file.read_lock(shipped_files.project().lock).pins
    sources = [pins.sources for by_platform in pinned.values() for pins in by_platform.values()]
    shipped = {by_name["vllm"].version for by_name in sources if "vllm" in by_name}
    assert shipped & set(RELEASES)
    for fault, versions in having.items():
        assert fault == DRAFTER_BLOCKS or not shipped & set(versions), fault

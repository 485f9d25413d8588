"""The page as HTML: well-formed, escaped, without a request, the same each time, and small."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.events import ignore
from builder.commands import listing
from builder.lab import report
from builder.lab.report import Part
from tests.evidence.runs import MODEL
from tests.lab.report import stocked

if TYPE_CHECKING:
    from builder.evidence.run_record import Kind


def changed(part: Part, **changes: Any) -> Part:
    return Part(**{**vars(part), **changes})


class Reader(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of {tag} stands twice"
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Part:
    project = stocked.fill(stocked.make(tmp_path_factory.mktemp("project")))
    return report.collect_page(project, {}, ignore, listing.present_evidence, full=True)


@pytest.fixture(scope="module")
def text(page: Part) -> str:
    return report.render_page(page)


@pytest.mark.slow
def test_text_of_others_is_text(text: str) -> None:
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert not {character for character in text if not character.isprintable() and character != "\n"}
    assert "\\x1b[31m" in text
    assert "\\u202e" in text


@pytest.mark.slow
def test_every_part_of_the_page_escapes(page: Part) -> None:
    """Whatever a text is, wherever it stands: no tag comes of it."""

    def poisoned(value: object) -> object:
        if isinstance(value, str):
            return f"{value}<i>{stocked.NASTY}"
        return value

    nasty = changed(
        page,
        concerns=[
            Part(**{name: value if name == "concern" else poisoned(value) for name, value in vars(each).items()})
            for each in page.concerns
        ],
        models=tuple(changed(each, why=str(poisoned(each.why)), mods=("<i>",), recipe="<i>") for each in page.models),
        images=tuple(changed(each, mods=("<i>",), definition="<i>", adopted="<i>") for each in page.images),
    )
    assert all(tag not in {"i", "script"} for tag, _ in read(report.render_page(nasty)).tags)


def test_nothing_is_fetched_and_nothing_runs(text: str) -> None:
    reader = read(text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in reader.tags}
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on") or name in {"src", "srcset", "style"}], tag
        address = attributes.get("href") or "#"
        assert address.startswith(("#", "https://github.com/")), address
    css = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert css
    assert "url(" not in css[1]
    assert "@import" not in css[1]


def test_the_policy_allows_this_style_sheet_alone(text: str) -> None:
    policy = next(attributes["content"] for _, attributes in read(text).tags if attributes.get("http-equiv"))
    css = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert css
    digest = base64.b64encode(hashlib.sha256(css[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_what_asks_for_attention_stands_first(page: Part, text: str) -> None:
    assert (
        text.index('id="attention"') < text.index('id="models"') < text.index('id="table"') < text.index('id="images"')
    )
    assert [concern.concern for concern in page.concerns] == ["missing", "unproven"]
    assert f"builder prove small:1 {stocked.OTHER}" in text


def test_every_link_leads_to_a_place_of_the_page(text: str) -> None:
    tags = read(text).tags
    places = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(places) == len(set(places))
    inner = {str(attributes["href"])[1:] for _, attributes in tags if str(attributes.get("href")).startswith("#")}
    assert inner <= set(places)


def test_a_history_says_how_each_number_came_and_what_it_measured(page: Part, text: str) -> None:
    model = next(each for each in page.models if each.model == MODEL)
    table = text[text.index("<h4>History</h4>") :]
    rows = re.findall(r'<th scope="row"><a href="#i\d">small:(\d)</a><td>2026-11-1\d<td>0.3\d.0<td>(.*?)<td>', table)[
        :3
    ]
    assert rows == [("3", "promoted from small:1"), ("2", "serves now, rolled back from small:3"), ("1", "paired")]
    assert [step.event for step in model.history] == ["paired", "rolled back", "promoted"]
    run = next(run for step in model.history if step.is_now for run in step.runs if run.kind == "bench")
    assert f"<td>{run.figures[0].mean:.3g} ± {run.figures[0].std:.3g}<meter max=" in table


def test_a_cell_names_each_run_beside_the_proof() -> None:
    words = {"prove": "proven", "bench quick": "proven", "same": "proven", "probe own": "failed"}
    cells = tuple(Part(image="small:1", model="m", proof=proof, word=words[proof], run="x-1.json") for proof in words)
    tried = table(("small:1",), ("m",), tuple(words), cells)
    page = Part(as_of="", concerns=(), models=(), table=tried, images=(), full=True)
    assert "proven<small>+ quick</small><small>+ same</small><small>own: failed</small>" in report.render_page(page)


def test_the_same_data_give_the_same_bytes(page: Part, text: str) -> None:
    assert report.render_page(page) == text


def test_an_empty_project_has_a_page() -> None:
    text = report.render_page(Part(as_of="", concerns=(), models=(), table=table((), (), ()), images=(), full=True))
    assert "Nothing was recorded yet" in text
    assert "builder build TARGET" in text


def large(numbers: int, models: int) -> Part:
    """A page on which each model was proven and measured on every number."""
    names = [f"vllm-node-tf5:{number}" for number in range(numbers, 0, -1)]
    called = [f"Organisation/Model-{place:02}-Instruct-FP8" for place in range(models)]

    def runs(number: int, speed: float) -> Iterator[Part]:
        kinds: tuple[tuple[Kind, str], ...] = (("prove", "behaviour"), ("bench", "quick"))
        for kind, name in kinds:
            at: tuple[dict[str, Any], ...] = tuple({"depth": depth, "concurrency": 1} for depth in (0, 32768, 131072))
            figures = [figure(speed, 0.4, name, **each) for each in at for name in ("tg", "pp")]
            figures += [figure(0.7, 0.01, "acceptance", "ratio"), figure(1.1e10, 1e8, "memory_floor", "bytes")]
            file = f"20261120T220000Z-{kind}-{name}-{number:08x}.json"
            yield run(*(figures if kind == "bench" else ()), kind=kind, name=name, run=file)

    history = tuple(
        step(
            number,
            *runs(number, 40 + number % 7),
            image=f"vllm-node-tf5:{number}",
            built="2026-11-20T22:00:00Z",
            event="promoted",
            origin=f"vllm-node-tf5:{number - 1}",
            place=number,
            is_now=number == numbers,
            status="good",
            standing="proven",
        )
        for number in range(1, numbers + 1)
    )
    cells = [
        Part(
            image=name,
            model=model,
            proof=proof,
            word="proven",
            run=f"20261120T220000Z-prove-behaviour-{place:08x}.json",
        )
        for place, name in enumerate(names)
        for model in called
        for proof in ("prove", "bench quick")
    ]
    shown = {"status": "good", "standing": "proven"}
    every = [
        Part(
            **shown,
            model=model,
            image=names[0],
            since="2026-11-20",
            revision="ab" * 20,
            recipe=None,
            template=None,
            mods=("a",),
            note="",
            why="",
            history=history,
        )
        for model in called
    ]
    none = dict.fromkeys(("pruned", "adopted", "change"))
    images = [
        Part(
            **shown,
            **none,
            image=name,
            repository="vllm-node-tf5",
            number=int(name.rpartition(":")[2]),
            built="2026-11-20T22:00:00Z",
            current=False,
            pinned=False,
            definition="tf5",
            platform="linux/arm64",
            size=19,
            note="a note",
            versions={"vllm": "0.30.0 (abcdef012)"},
            base="",
            mods=("fix-qwen3.5-enhanced-chat-template",),
            packages=184,
            models=(),
        )
        for name in names
    ]
    of_all = table(names, called, ("prove", "bench quick"), cells)
    return Part(as_of="2026-11-20T22:00:00Z", concerns=(), models=every, table=of_all, images=images, full=False)


@pytest.mark.slow
def test_200_numbers_of_20_models_fit_a_megabyte() -> None:
    page = large(200, 20)
    began = time.process_time()
    text = report.render_page(page)
    assert len(text.encode()) < 1_000_000
    assert time.process_time() - began < 60  # seconds: an hour would be a mistake, not a slow machine
    assert "The last" in text
    assert text.count('<tr><th scope="row">') > 200


@pytest.mark.slow
def test_the_history_of_a_single_model_may_be_long() -> None:
    page = large(60, 1)
    assert report.render_page(page).count("serves now, ") == 1
    assert report.render_page(page).count("promoted from") == 60
    assert "The last" not in report.render_page(page)


# The figures of a history: bars only for what can be compared.


def figure(mean: float, std: float = 1.0, name: str = "tg", unit: str = "tokens/s", **at: Any) -> Part:
    return Part(name=name, at=at, unit=unit, better="higher", mean=mean, std=std, n=3)


def run(*figures: Part, **changes: Any) -> Part:
    facts = {"kind": "bench", "name": "quick", "verdict": "pass", "word": "proven", "started": "2026-11-20T22:00:00Z"}
    more = {"stale": (), "accepted": "", "seconds": 60, "version": "1", "protocol": "p"}
    return Part(**{**facts, **more, "machine": "GB10", "run": "f", "figures": figures, **changes})


def step(number: int, *runs: Part, **changes: Any) -> Part:
    facts = {"image": f"small:{number}", "built": "2026", "vllm": "0.30", "event": "", "origin": "", "place": 0}
    return Part(
        **{**facts, "is_now": False, "status": "untested", "note": "", "standing": None, "runs": runs, **changes}
    )


def table(images: Sequence[str], models: Sequence[str], proofs: Sequence[str], cells: Sequence[Part] = ()) -> Part:
    return Part(images=images, models=models, proofs=proofs, cells=cells)


def cells(*steps: Part) -> list[list[Part]]:
    """The cells of each step, the newest last."""
    history = (*steps[:-1], changed(steps[-1], is_now=True))
    return [figures for _, figures in report.view_of(Part(history=history), 10).rows][::-1]


def test_a_bar_is_beside_the_largest_of_its_column() -> None:
    first, second = cells(step(1, run(figure(40.0, depth=0))), step(2, run(figure(50.0, depth=0))))
    assert [(each.mean, each.most, each.text) for each in (*first, *second)] == [(40, 50, "40 ± 1"), (50, 50, "50 ± 1")]


def test_what_cannot_be_compared_has_no_bar() -> None:
    steps = [step(n, run(figure(40 + n, depth=0), protocol=protocol)) for n, protocol in enumerate("aabb")]
    assert [[each.mean is not None, "other conditions" in each.text] for (each,) in cells(*steps)] == [
        *([False, True], [False, True], [True, False], [True, False])
    ]


def test_a_stale_run_is_marked() -> None:
    steps = [step(1, run(figure(40, depth=0))), step(2, run(figure(41, depth=0), stale=("the image",)))]
    assert ["stale" in each.text for (each,) in cells(*steps)] == [False, True]


def test_one_column_for_each_depth_with_the_fewest_requests() -> None:
    every = [figure(40, depth=depth, concurrency=count) for depth in (0, 32768, 131072) for count in (8, 1, 4)]
    view = report.view_of(Part(history=(changed(step(1, run(*every)), is_now=True),)), 10)
    assert view.columns == [f"tg at depth {depth}, tokens/s" for depth in (0, 32768, 131072)]


def test_the_profile_with_most_numbers_is_shown() -> None:
    steps = [step(1, run(figure(40), name="rare")), *(step(n, run(figure(9), name="usual")) for n in (2, 3))]
    assert report.benchmarks(steps)[0] == "usual"


def test_the_step_that_serves_now_is_always_there() -> None:
    steps = [changed(step(0), is_now=True), *(step(n) for n in range(1, 9))]
    shown = [each.image for each, _ in report.view_of(Part(history=tuple(steps)), 3).rows]
    assert shown == ["small:8", "small:7", "small:0"]

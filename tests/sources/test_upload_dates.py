"""Closures as of a day, resolved by the real uv from indexes with and without upload times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.image import Index, PythonRequirements
from builder.lock.model import LockedPackage
from builder.sources import python
from builder.sources.git import UserSettings
from builder.sources.wheels import read_upload_date
from tests.sources.wheelhouse import make_dated_index, make_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.lock.model import PythonPin


pytestmark = pytest.mark.slow

JANUARY, MARCH, MAY = "2026-01-10T00:00:00Z", "2026-03-10T00:00:00Z", "2026-05-10T00:00:00Z"
WANTS = PythonRequirements("3.12", "2.39", ("serve",))


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, Path]:
    """Two versions of ``serve``, which needs ``kernel``, and two of that."""
    folder = tmp_path / "index"
    return {
        "serve 1": make_wheel(folder, "serve", "1.0", requires=("kernel",)),
        "serve 2": make_wheel(folder, "serve", "2.0", requires=("kernel",)),
        "kernel 1": make_wheel(folder, "kernel", "1.0"),
        "kernel 2": make_wheel(folder, "kernel", "2.0"),
    }


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[dict[Path, str]], UserSettings]]:
    """Settings for the served index in the folder ``index``, given the upload times of its wheels."""
    with serving(tmp_path / "index") as server:

        def settings(uploads: dict[Path, str]) -> UserSettings:
            make_dated_index(tmp_path / "index", uploads)
            return UserSettings(index_url=f"{server.url}/simple")

        yield settings


def resolve(
    settings: UserSettings,
    as_of: str,
    wants: PythonRequirements = WANTS,
    exempt: frozenset[str] = frozenset(),
    inherited: tuple[LockedPackage, ...] = (),
) -> PythonPin:
    request = python.ClosureRequest(wants, (), wants.packages, "linux/arm64", (), as_of, exempt)
    return python.resolve_closure(request, settings, inherited).pin


def versions(pin: PythonPin) -> dict[str, str]:
    return {package.name: package.version for package in pin.packages}


def dates(wheels: dict[str, Path]) -> dict[Path, str]:
    return dict(zip(wheels.values(), (JANUARY, MARCH, JANUARY, MAY), strict=True))


def test_nothing_newer_than_the_day_is_taken(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    settings = served(dates(wheels))
    assert versions(resolve(settings, "")) == {"serve": "2.0", "kernel": "2.0"}
    pin = resolve(settings, "2026-04-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "1.0"}
    assert (pin.as_of, pin.newest, pin.undated) == ("2026-04-01T00:00:00Z", MARCH, ())
    assert versions(resolve(settings, "2026-02-01T00:00:00Z")) == {"serve": "1.0", "kernel": "1.0"}


def test_a_day_to_come_is_recorded_and_leaves_nothing_out(tmp_path: Path, wheels: dict[str, Path]) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "undated", list(wheels.values())))
    pin = resolve(settings, "2199-01-01T00:00:00Z")
    assert (versions(pin), pin.as_of) == ({"serve": "2.0", "kernel": "2.0"}, "2199-01-01T00:00:00Z")


def test_an_exempt_package_may_be_newer(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    pin = resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", exempt=frozenset({"kernel"}))
    assert versions(pin) == {"serve": "1.0", "kernel": "2.0"}


def test_what_the_image_has_already_may_be_newer(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    inherited = LockedPackage("kernel", "2.0", (sha256(wheels["kernel 2"]),))
    pin = resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", inherited=(inherited,))
    assert versions(pin) == {"serve": "1.0", "kernel": "2.0"}


def test_what_only_newer_packages_could_do_is_an_error_that_says_so(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    wants = PythonRequirements("3.12", "2.39", ("serve>=2",))
    with pytest.raises(SourceError) as caught:
        resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", wants)
    assert "serve>=2" in caught.value.message
    assert "nothing newer than 2026-02-01T00:00:00Z is taken" in caught.value.hint
    assert "as_of: today" in caught.value.hint


@pytest.mark.parametrize("form", ["html", "json"])
def test_an_index_without_dates_gives_the_packages_of_today(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings], form: str
) -> None:
    undated = served(dict.fromkeys(wheels.values(), ""))
    settings = (
        undated if form == "json" else UserSettings(index_url=make_index(tmp_path / "undated", list(wheels.values())))
    )
    pin = resolve(settings, "2026-02-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "2.0"}
    assert (pin.as_of, pin.undated) == ("", ())


def test_packages_without_dates_do_not_keep_the_others_from_their_day(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    own = [make_wheel(tmp_path / "own", "torch", version, requires=("deep",)) for version in ("1.0", "2.0")]
    own.append(make_wheel(tmp_path / "own", "deep", "3.0"))
    index = Index(make_index(tmp_path / "own-simple", own), ("torch", "deep"))
    wants = PythonRequirements("3.12", "2.39", ("serve", "torch", "deep"), indexes=(index,))
    pin = resolve(served(dates(wheels)), "2026-04-01T00:00:00Z", wants)
    assert versions(pin) == {"serve": "2.0", "kernel": "1.0", "torch": "2.0", "deep": "3.0"}
    assert (pin.as_of, pin.undated) == ("2026-04-01T00:00:00Z", ("deep", "torch"))


def test_an_old_version_is_not_taken_because_what_the_new_one_needs_has_no_date(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    alone = make_wheel(tmp_path / "index", "serve", "0.1")
    uploads = {wheels["serve 2"]: JANUARY, alone: JANUARY, wheels["kernel 2"]: ""}
    pin = resolve(served(uploads), "2026-04-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "2.0"}
    assert pin.undated == ("kernel",)


def test_a_deep_tree_without_dates_ends() -> None:
    runs: list[list[str]] = []

    def compile_closure(options: list[str]) -> tuple[dict[str, object], str]:
        runs.append(options)
        warning = f"warning: `deep{len(runs)}-1.0-py3-none-any.whl` is missing an upload date, but user provided: x"
        return {}, warning

    dated = python.compile_as_of(compile_closure, JANUARY, (), frozenset({"serve"}))
    assert not dated.limited
    assert runs[-1] == ["--quiet"]
    assert len(runs) < 20


def test_local_wheels_are_of_any_age(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    local = make_wheel(tmp_path / "local", "kernel", "9.0")
    settings = served(dates(wheels))
    settings = UserSettings(index_url=settings.index_url, find_links=(str(local.parent),))
    assert versions(resolve(settings, "2026-04-01T00:00:00Z")) == {"serve": "2.0", "kernel": "9.0"}


def test_a_release_is_as_old_as_its_first_wheel(
    tmp_path: Path, served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    folder = tmp_path / "index"
    first = make_wheel(folder, "vllm", "0.21.0", "cp312-cp312-manylinux_2_28_aarch64")
    added = make_wheel(folder, "vllm", "0.21.0", "cp312-cp312-manylinux_2_31_aarch64")
    settings = served({first: MARCH, added: MAY})
    assert read_upload_date("vllm==0.21.0", WANTS, "linux/arm64", settings) == MARCH
    assert read_upload_date("vllm", WANTS, "linux/arm64", settings) == MARCH
    assert read_upload_date("vllm", WANTS, "linux/arm64", served({first: "", added: ""})) == ""
    with pytest.raises(SourceError, match="vllm==1.0 is not found"):
        read_upload_date("vllm==1.0", WANTS, "linux/arm64", settings)

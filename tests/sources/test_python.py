"""The Python closure, resolved by the real uv from an index on disk."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions import image
from builder.definitions.image import GitSource, Index, PythonRequirements, WheelSource
from builder.lock.model import GitPin, LockedPackage, PythonPin
from builder.sources import python
from builder.sources.git import UserSettings
from builder.sources.wheels import WheelRequest, find_wheel, read_upload_date
from tests import projects, web_server
from tests.sources.wheelhouse import make_dated_index, make_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


WANTS = PythonRequirements(version="3.12", glibc="2.39", packages=("serve>=1",))


def resolve(
    wants: PythonRequirements,
    platform: str,
    settings: UserSettings,
    inherited: tuple[LockedPackage, ...] = (),
    before: tuple[LockedPackage, ...] = (),
) -> PythonPin:
    request = python.ClosureRequest(wants, ("what was asked",), wants.packages, platform, before)
    return python.resolve_closure(request, settings, inherited).pin


@pytest.mark.slow
def test_the_closure_holds_every_file_that_suits_the_platform_and_no_other(tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path / "files", "serve", "1.2", requires=("kernel",)),
        make_wheel(tmp_path / "files", "serve", "0.9"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp312-cp312-manylinux_2_28_aarch64"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp312-cp312-manylinux_2_28_x86_64"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp311-cp311-manylinux_2_28_aarch64"),
    ]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    pin = resolve(WANTS, "linux/arm64", settings)
    assert pin.packages == (
        LockedPackage("kernel", "3.0", (sha256(wheels[2]),)),
        LockedPackage("serve", "1.2", (sha256(wheels[0]),)),
    )
    assert pin.requested == ("what was asked",)


@pytest.mark.slow
@pytest.mark.parametrize("as_of", ["", "2026-01-01T00:00:00Z"])
def test_a_yanked_release_and_an_extra_that_does_not_exist_are_warned_of(tmp_path: Path, as_of: str) -> None:
    wheels = [make_wheel(tmp_path / "files", name, "1.2") for name in ("serve", "kernel")]
    index_url = make_index(tmp_path / "simple", wheels)
    page = tmp_path / "simple/kernel/index.html"
    page.write_text(page.read_text().replace("<a ", '<a data-yanked="wrong results" '))
    requirements = ("serve[fast]", "kernel==1.2")
    request = python.ClosureRequest(WANTS, requirements, requirements, "linux/arm64", as_of=as_of)
    resolved = python.resolve_closure(request, UserSettings(index_url=index_url))
    assert sorted(resolved.warnings) == [
        "The package `serve==1.2` does not have an extra named `fast`",
        '`kernel==1.2` is yanked (reason: "wrong results")',
    ]


@pytest.mark.slow
def test_a_package_from_a_repository_is_not_checked_out(tmp_path: Path) -> None:
    wants = replace(WANTS, packages=(f"evil @ git+file://{tmp_path}/evil",))
    with pytest.raises(SourceError, match="evil is requested by its address"):
        resolve(wants, "linux/arm64", UserSettings(index_url="http://127.0.0.1:9/simple"))


@pytest.mark.slow
def test_a_package_that_is_never_wanted_is_left_out(tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path / "files", "serve", "1.2", requires=("vision",)),
        make_wheel(tmp_path / "files", "vision", "9"),
    ]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    names = [p.name for p in resolve(replace(WANTS, without=("vision",)), "linux/amd64", settings).packages]
    assert names == ["serve"]


@pytest.mark.slow
def test_an_index_of_its_own_serves_its_packages_alone(tmp_path: Path) -> None:
    common = make_wheel(tmp_path / "files", "serve", "1.2", requires=("torch",))
    wrong = make_wheel(tmp_path / "files", "torch", "9")
    right = make_wheel(tmp_path / "own", "torch", "2")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [common, wrong]))
    wants = replace(
        WANTS, packages=("serve", "torch"), indexes=(Index(make_index(tmp_path / "own-simple", [right]), ("torch",)),)
    )
    assert {p.name: p.version for p in resolve(wants, "linux/amd64", settings).packages} == {
        "serve": "1.2",
        "torch": "2",
    }


@pytest.mark.slow
def test_a_local_wheel_comes_before_an_index_of_its_own(tmp_path: Path) -> None:
    local = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu", "cp312-cp312-manylinux_2_28_x86_64")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(local.parent),))
    wants = replace(WANTS, packages=("torch==2.13.0+cpu",), indexes=(Index("file:///nowhere/at/all", ("torch",)),))
    assert resolve(wants, "linux/amd64", settings).packages == (LockedPackage("torch", "2.13.0+cpu", (sha256(local),)),)
    with pytest.raises(SourceError):
        resolve(wants, "linux/arm64", settings)


@pytest.mark.slow
def test_what_cannot_be_had_is_said_in_uvs_words(tmp_path: Path) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [make_wheel(tmp_path / "files", "serve", "0.9")]))
    with pytest.raises(SourceError) as caught:
        resolve(WANTS, "linux/arm64", settings)
    assert "cannot be resolved for linux/arm64, Python 3.12" in caught.value.message
    assert "serve" in caught.value.message


@pytest.mark.slow
def test_a_cache_of_uv_that_cannot_be_written_is_no_fault_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [make_wheel(tmp_path / "files", "serve", "1.2")]
    projects.write(tmp_path / "cache", "a file, so uv cannot make its folder")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(SourceError, match="Failed to initialize cache") as caught:
        resolve(WANTS, "linux/arm64", UserSettings(index_url=make_index(tmp_path / "simple", wheels)))
    assert "UV_CACHE_DIR" in caught.value.hint


BACKEND = """\
import pathlib
pathlib.Path({mark!r}).touch()
raise SystemExit(1)
"""
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "serve"
dynamic = ["version", "dependencies"]
"""


def make_source(folder: Path, mark: Path) -> Path:
    """A source distribution whose build leaves ``mark``."""
    files = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND.format(mark=str(mark)), "PKG-INFO": METADATA}
    folder.mkdir()
    for name, text in files.items():
        projects.write(folder / "serve-1.3" / name, text)
    with tarfile.open(folder / "serve-1.3.tar.gz", "w:gz") as archive:
        archive.add(folder / "serve-1.3", "serve-1.3")
    return folder / "serve-1.3.tar.gz"


METADATA = "Metadata-Version: 2.1\nName: serve\nVersion: 1.3\n"


@pytest.mark.slow
def test_no_code_of_a_package_runs_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    source = make_source(tmp_path / "source", mark)
    wheel = make_wheel(tmp_path / "files", "serve", "1.2")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]), find_links=(str(tmp_path / "source"),))
    assert [package.version for package in resolve(WANTS, "linux/arm64", settings).packages] == ["1.2"]
    for wanted in ("serve==1.3", f"serve @ {source.as_uri()}", f"serve @ {(tmp_path / 'source/serve-1.3').as_uri()}"):
        with pytest.raises(SourceError, match="cannot be resolved") as caught:
            resolve(replace(WANTS, packages=(wanted,)), "linux/arm64", settings)
        assert "UV_NO_BUILD=0" in caught.value.hint, caught.value.message
    assert not mark.exists()
    monkeypatch.setenv("UV_NO_BUILD", "0")
    with pytest.raises(SourceError):
        resolve(replace(WANTS, packages=("serve==1.3",)), "linux/arm64", settings)
    assert mark.exists()


@pytest.mark.slow
def test_a_package_that_no_index_has_cannot_be_pinned(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "files", "serve", "1.2", requires=("kernel",))
    kernel = make_wheel(tmp_path / "files", "kernel", "3.0")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]))
    wants = replace(WANTS, packages=("serve", f"kernel @ {kernel.as_uri()}"))
    with pytest.raises(SourceError, match="kernel is requested by its address") as caught:
        resolve(wants, "linux/arm64", settings)
    assert "`kernel==VERSION`" in caught.value.hint


@pytest.mark.slow
def test_an_index_without_sha256_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "files", "serve", "1.2")
    digest = hashlib.sha512(wheel.read_bytes()).hexdigest()
    index = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]))
    page = tmp_path / "simple/serve/index.html"
    page.write_text(page.read_text().replace(f"sha256={sha256(wheel)}", f"sha512={digest}"))
    with pytest.raises(SourceError, match="the index has no sha256 of serve, only sha512"):
        resolve(WANTS, "linux/arm64", index)


@pytest.mark.slow
def test_every_wish_counts(tmp_path: Path) -> None:
    small = image.load_image(projects.make(tmp_path), "small", "linux/arm64")
    changed = [
        replace(WANTS, version="3.11"),
        replace(WANTS, glibc="2.36"),
        replace(WANTS, packages=("serve>=2",)),
        replace(WANTS, without=("vision",)),
        replace(WANTS, indexes=(Index("https://example.org", ("torch",)),)),
    ]
    definitions = [replace(small, python=wants) for wants in (WANTS, *changed)]
    definitions.append(replace(small, python=WANTS, sources={"vllm": WheelSource("vllm==1")}))
    git = replace(small, python=WANTS, sources={"vllm": GitSource("https://x", "main", requirements=("r.txt",))})
    pins = [GitPin("https://x", "main", commit * 40, "1", "2026-01-01T00:00:00Z") for commit in "ab"]
    requests = {python.requested_packages(definition, {}, ()) for definition in definitions}
    requests |= {python.requested_packages(git, {"vllm": pin}, ()) for pin in pins}
    assert len(requests) == len(definitions) + len(pins)


@pytest.mark.slow
def test_what_is_held_keeps_its_version(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "files", "serve", version) for version in ("1.2", "1.9")]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    inherited = (LockedPackage("serve", "1.2", ()),)
    assert resolve(WANTS, "linux/arm64", settings, inherited).packages[0].version == "1.2"
    assert resolve(WANTS, "linux/arm64", settings).packages[0].version == "1.9"


@pytest.mark.slow
def test_what_was_resolved_before_stays_where_it_will_do(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "files", "serve", version) for version in ("1.2", "1.9")]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    before = (LockedPackage("serve", "1.2", ("0" * 64,)),)
    kept = resolve(WANTS, "linux/arm64", settings, before=before).packages
    assert kept == (LockedPackage("serve", "1.2", (sha256(wheels[0]),)),)
    moved = resolve(replace(WANTS, packages=("serve>=1.5",)), "linux/arm64", settings, before=before).packages
    assert moved[0].version == "1.9"


# Packages that come with a base image, in the resolution of what goes on top.

BASE = (
    LockedPackage("vllm", "0.23.1rc1.dev12+g0fc695fc6", ()),  # no index has it
    LockedPackage("torch", "2.13.0+cu130", ()),
    LockedPackage("transformers", "5.2.0", ()),
    LockedPackage("python-apt", "2.4.0+ubuntu4.1", ()),
    LockedPackage("distro-info", "1.1build1", ()),  # no version that a resolver can read
    LockedPackage("uv", "0.9.0", ()),
)


@pytest.fixture
def stub_wheels_settings(tmp_path: Path) -> UserSettings:
    """An index whose vllm, another one, needs what nobody has."""
    folder = tmp_path / "files"
    wheels = [
        make_wheel(folder, "extra", "1.0", requires=("vllm", "torch>=2")),
        make_wheel(folder, "transformers", "5.2.0", requires=("nobody-has-this",)),
        make_wheel(folder, "transformers", "5.3.0"),
        make_wheel(folder, "transformers", "5.9.0"),
        make_wheel(folder, "vllm", "0.20.0", requires=("nobody-has-this",)),
        make_wheel(folder, "torch", "2.14.0"),
        make_wheel(folder, "uv", "0.11.0"),
    ]
    return UserSettings(index_url=make_index(tmp_path / "simple", wheels))


def stub_wheels_resolve(
    settings: UserSettings, *requirements: str, previous: tuple[LockedPackage, ...] = ()
) -> dict[str, str]:
    wants = PythonRequirements(version="3.12", glibc="2.39", packages=())
    request = python.ClosureRequest(wants, (), (*requirements, "uv"), "linux/arm64", previous)
    closure = python.resolve_closure(request, settings, BASE).pin
    there = {package.name: package.version for package in BASE}
    return {package.name: package.version for package in closure.packages if there.get(package.name) != package.version}


@pytest.mark.slow
def test_only_what_the_base_lacks_is_added_and_nothing_of_it_moves(stub_wheels_settings: UserSettings) -> None:
    assert stub_wheels_resolve(stub_wheels_settings, "extra") == {"extra": "1.0"}


@pytest.mark.long
@pytest.mark.slow
def test_what_is_asked_for_itself_stays_where_it_fits_and_moves_where_it_does_not(
    stub_wheels_settings: UserSettings,
) -> None:
    assert stub_wheels_resolve(stub_wheels_settings, "transformers>=5") == {}
    assert stub_wheels_resolve(stub_wheels_settings, "transformers>=5.3") == {"transformers": "5.9.0"}
    before = (LockedPackage("transformers", "5.3.0", ("0" * 64,)),)
    assert stub_wheels_resolve(stub_wheels_settings, "transformers>=5.3", previous=before) == {"transformers": "5.3.0"}
    assert stub_wheels_resolve(stub_wheels_settings, "transformers>=5", previous=before) == {"transformers": "5.3.0"}


@pytest.mark.slow
def test_what_does_not_go_with_the_base_is_an_error(stub_wheels_settings: UserSettings, tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "wants-newer", "1.0", requires=("torch>=2.14",))
    make_index(tmp_path / "simple", sorted((tmp_path / "files").glob("*.whl")))
    with pytest.raises(SourceError, match=r"torch==2\.13\.0\+cu130"):
        stub_wheels_resolve(stub_wheels_settings, "wants-newer")


# Closures as of a day, resolved by the real uv from indexes with and without upload times.

JANUARY, MARCH, MAY = "2026-01-10T00:00:00Z", "2026-03-10T00:00:00Z", "2026-05-10T00:00:00Z"
UPLOAD_DATES_WANTS = PythonRequirements("3.12", "2.39", ("serve",))


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


def upload_dates_resolve(
    settings: UserSettings,
    as_of: str,
    wants: PythonRequirements = UPLOAD_DATES_WANTS,
    exempt: frozenset[str] = frozenset(),
    inherited: tuple[LockedPackage, ...] = (),
) -> PythonPin:
    request = python.ClosureRequest(wants, (), wants.packages, "linux/arm64", (), as_of, exempt)
    return python.resolve_closure(request, settings, inherited).pin


def versions(pin: PythonPin) -> dict[str, str]:
    return {package.name: package.version for package in pin.packages}


def dates(wheels: dict[str, Path]) -> dict[Path, str]:
    return dict(zip(wheels.values(), (JANUARY, MARCH, JANUARY, MAY), strict=True))


@pytest.mark.slow
def test_nothing_newer_than_the_day_is_taken(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    settings = served(dates(wheels))
    assert versions(upload_dates_resolve(settings, "")) == {"serve": "2.0", "kernel": "2.0"}
    pin = upload_dates_resolve(settings, "2026-04-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "1.0"}
    assert (pin.as_of, pin.newest, pin.undated) == ("2026-04-01T00:00:00Z", MARCH, ())
    assert versions(upload_dates_resolve(settings, "2026-02-01T00:00:00Z")) == {"serve": "1.0", "kernel": "1.0"}


@pytest.mark.slow
def test_a_day_to_come_is_recorded_and_leaves_nothing_out(tmp_path: Path, wheels: dict[str, Path]) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "undated", list(wheels.values())))
    pin = upload_dates_resolve(settings, "2199-01-01T00:00:00Z")
    assert (versions(pin), pin.as_of) == ({"serve": "2.0", "kernel": "2.0"}, "2199-01-01T00:00:00Z")


@pytest.mark.slow
def test_an_exempt_package_may_be_newer(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    pin = upload_dates_resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", exempt=frozenset({"kernel"}))
    assert versions(pin) == {"serve": "1.0", "kernel": "2.0"}


@pytest.mark.slow
def test_what_the_image_has_already_may_be_newer(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    inherited = LockedPackage("kernel", "2.0", (sha256(wheels["kernel 2"]),))
    pin = upload_dates_resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", inherited=(inherited,))
    assert versions(pin) == {"serve": "1.0", "kernel": "2.0"}


@pytest.mark.slow
def test_what_only_newer_packages_could_do_is_an_error_that_says_so(
    wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    wants = PythonRequirements("3.12", "2.39", ("serve>=2",))
    with pytest.raises(SourceError) as caught:
        upload_dates_resolve(served(dates(wheels)), "2026-02-01T00:00:00Z", wants)
    assert "serve>=2" in caught.value.message
    assert "packages newer than 2026-02-01T00:00:00Z are used only if" in caught.value.hint
    assert "as_of: today" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("form", ["html", "json"])
def test_an_index_without_dates_gives_the_packages_of_today(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings], form: str
) -> None:
    undated = served(dict.fromkeys(wheels.values(), ""))
    settings = (
        undated if form == "json" else UserSettings(index_url=make_index(tmp_path / "undated", list(wheels.values())))
    )
    pin = upload_dates_resolve(settings, "2026-02-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "2.0"}
    assert (pin.as_of, pin.undated) == ("", ())


@pytest.mark.long
@pytest.mark.slow
def test_packages_without_dates_do_not_keep_the_others_from_their_day(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    own = [make_wheel(tmp_path / "own", "torch", version, requires=("deep",)) for version in ("1.0", "2.0")]
    own.append(make_wheel(tmp_path / "own", "deep", "3.0"))
    index = Index(make_index(tmp_path / "own-simple", own), ("torch", "deep"))
    wants = PythonRequirements("3.12", "2.39", ("serve", "torch", "deep"), indexes=(index,))
    pin = upload_dates_resolve(served(dates(wheels)), "2026-04-01T00:00:00Z", wants)
    assert versions(pin) == {"serve": "2.0", "kernel": "1.0", "torch": "2.0", "deep": "3.0"}
    assert (pin.as_of, pin.undated) == ("2026-04-01T00:00:00Z", ("deep", "torch"))


@pytest.mark.slow
def test_an_old_version_is_not_taken_because_what_the_new_one_needs_has_no_date(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    alone = make_wheel(tmp_path / "index", "serve", "0.1")
    uploads = {wheels["serve 2"]: JANUARY, alone: JANUARY, wheels["kernel 2"]: ""}
    pin = upload_dates_resolve(served(uploads), "2026-04-01T00:00:00Z")
    assert versions(pin) == {"serve": "2.0", "kernel": "2.0"}
    assert pin.undated == ("kernel",)


@pytest.mark.slow
def test_a_deep_tree_without_dates_ends() -> None:
    runs: list[list[str]] = []

    def compile_closure(options: list[str]) -> tuple[dict[str, object], str]:
        runs.append(options)
        warning = f"warning: `deep{len(runs)}-1.0-py3-none-any.whl` is missing an upload date, but user provided: x"
        return {}, warning

    undated = python.compile_as_of(compile_closure, JANUARY, (), frozenset({"serve"}))[2]
    assert undated is None
    assert runs[-1] == []
    assert len(runs) < 20


@pytest.mark.slow
def test_local_wheels_are_of_any_age(
    tmp_path: Path, wheels: dict[str, Path], served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    local = make_wheel(tmp_path / "local", "kernel", "9.0")
    settings = served(dates(wheels))
    settings = UserSettings(index_url=settings.index_url, find_links=(str(local.parent),))
    assert versions(upload_dates_resolve(settings, "2026-04-01T00:00:00Z")) == {"serve": "2.0", "kernel": "9.0"}


@pytest.mark.long
@pytest.mark.slow
def test_a_release_is_as_old_as_its_first_wheel(
    tmp_path: Path, served: Callable[[dict[Path, str]], UserSettings]
) -> None:
    folder = tmp_path / "index"
    first = make_wheel(folder, "vllm", "0.21.0", "cp312-cp312-manylinux_2_28_aarch64")
    added = make_wheel(folder, "vllm", "0.21.0", "cp312-cp312-manylinux_2_31_aarch64")
    settings = served({first: MARCH, added: MAY})
    assert read_upload_date("vllm==0.21.0", UPLOAD_DATES_WANTS, "linux/arm64", settings) == MARCH
    assert read_upload_date("vllm", UPLOAD_DATES_WANTS, "linux/arm64", settings) == MARCH
    assert read_upload_date("vllm", UPLOAD_DATES_WANTS, "linux/arm64", served({first: "", added: ""})) == ""
    with pytest.raises(SourceError, match="no wheel of vllm==1.0 was found"):
        read_upload_date("vllm==1.0", UPLOAD_DATES_WANTS, "linux/arm64", settings)


# An index that does not give its packages: another version or another request would not help.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "answers 401 Unauthorized"), (403, "answers 403 Forbidden"), (500, "(500 Internal Server Error)")],
)
def test_an_index_that_refuses_is_named_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with web_server.serving() as web:
        web.absent = status
        assert_index_is_blamed(tmp_path, web.url, said)


@pytest.mark.slow
def test_an_index_that_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with web_server.serving() as web:
        pass
    assert_index_is_blamed(tmp_path, web.url, "Connection refused")


def assert_index_is_blamed(folder: Path, index: str, said: str) -> None:
    settings = UserSettings(index_url=index)
    with pytest.raises(SourceError) as closure:
        resolve(WANTS, "linux/arm64", settings)
    with pytest.raises(SourceError) as wheel:
        find_wheel(folder / "cache", WheelRequest("serve==1", WANTS, "linux/arm64"), settings)
    for error in (closure.value, wheel.value):
        first = error.message.partition("\n")[0]
        assert index in first
        assert said in first
        assert "PIP_INDEX_URL" in error.hint
        assert "name a version" not in error.hint

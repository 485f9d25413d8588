from __future__ import annotations

from typing import TYPE_CHECKING

from builder.definitions import mod
from tests import projects
from tests.definitions.mods.mod_texts import ALL_KEYS, load

if TYPE_CHECKING:
    from pathlib import Path


def test_the_content_hash_covers_names_bytes_and_execute_bits(tmp_path: Path) -> None:
    def hashed(folder: str, name: str, text: str, mode: int) -> str:
        root = tmp_path / folder
        project = projects.make(root)
        projects.add_mod(root, "m", "true\n", {name: text})
        (root / "mods/m" / name).chmod(mode)
        return mod.load_mod(project, "m").content_hash

    plain = hashed("a", "x", "1", 0o644)
    assert plain == hashed("b", "x", "1", 0o600) == hashed("f", "x", "1", 0o666)
    others = {hashed("c", "y", "1", 0o644), hashed("d", "x", "2", 0o644), hashed("e", "x", "1", 0o755)}
    assert len(others | {plain}) == 4


def test_the_content_hash_covers_what_is_done_and_checked_and_nothing_else(tmp_path: Path) -> None:
    files = ("a.jinja", "tree/x", "a.patch", "b.patch", "go.sh", "look.sh")
    same = [
        ALL_KEYS,
        ALL_KEYS.replace("all keys", "other words"),
        ALL_KEYS.replace('">=0.19,<0.23"', '">=0.19"'),
        ALL_KEYS.replace("friend", "stranger"),
        f"# a comment\n{ALL_KEYS}",
    ]
    other = [
        ALL_KEYS.replace("to: .", "to: /opt/"),
        ALL_KEYS.replace("package: six", "package: vllm"),
        ALL_KEYS.replace(">=1.16", ">=1.17"),
        ALL_KEYS.replace("0.1.8", "0.1.9"),
        ALL_KEYS.replace("VLLM_X: 1", "VLLM_X: 2"),
        ALL_KEYS.replace("contains: tool", "contains: fool"),
        ALL_KEYS.replace("timeout: 60", "timeout: 61"),
        ALL_KEYS.replace("may_be_empty: true", "may_be_empty: false"),
        ALL_KEYS.replace("run: go.sh", "run: look.sh"),
    ]

    def hashed(number: int, yaml: str) -> str:
        return load(tmp_path / str(number), yaml, *files).content_hash

    assert len({hashed(number, yaml) for number, yaml in enumerate(same)}) == 1
    assert len({hashed(number, yaml) for number, yaml in enumerate([ALL_KEYS, *other], start=10)}) == len(other) + 1

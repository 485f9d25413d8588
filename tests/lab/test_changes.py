"""What is known of an image when it is compared."""

from __future__ import annotations

from dataclasses import replace

from builder.lab.changes import ComparedImage, contents_of
from builder.lock.model import GitPin, ImageName, Lock, Pins, Version
from tests import locks

PIN = GitPin("https://host/vllm.git", "main", "0123456789abcdef" * 2 + "01234567", "0.32.0", "2026-11-20T22:00:00Z")


def test_a_commit_is_whole_where_the_pins_have_it() -> None:
    """A number has 12 digits of a commit: without its build directory, it is not taken for another one."""
    lock = Lock().with_pins("small", "linux/amd64", Pins(sources={"vllm": PIN}))
    for commit, whole in [(PIN.commit[:12], PIN.commit), ("f" * 12, "f" * 12), (None, None)]:
        image = replace(locks.numbered(), versions={"vllm": Version("0.32.0", commit)})
        contents = contents_of(lock, ComparedImage(ImageName("small", 1), image, None, None, {}))
        assert contents.sources == {"vllm": Version("0.32.0", whole)}

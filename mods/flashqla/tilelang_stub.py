"""TileLang's stand-in for the CUDA runtime, kept from those who look for the real one.

The libraries of TileLang need a small one that opens the CUDA runtime when it is called, and has few of its functions.
In TileLang 0.1.9 it is called ``libcudart_stub.so``. FlashInfer (``flashinfer/comm/cuda_ipc.py``) and vLLM
(``cuda_wrapper.py``, for several GPUs and for sleep mode) take the first library in /proc/self/maps with "libcudart" in
its path for the CUDA runtime. Which one is first changes from start to start: loading the real one first is no help.

So the stand-in is loaded from memory, under a name that nobody looks for, before TileLang is imported. The dynamic
linker knows it by the name that is written in it (DT_SONAME), and does not load it again from its file. Nothing on the
disk is changed, so that any TileLang that is installed later has the same done to it; 0.1.12, whose file is called
``libstub_cudart.so``, needs nothing done.

``tilelang_stub.pth`` imports this module when Python starts, so whoever imports TileLang first comes after it. That is
why it imports nothing until then: https://docs.python.org/3/library/site.html.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of typing takes longer to import than all of this
if TYPE_CHECKING:
    from pathlib import Path

# What is looked for in /proc/self/maps.
SOUGHT = "libcudart"


class _Watch:
    """Finds no module. It is asked for each one that is imported, and hides the stand-in when TileLang is next."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "tilelang" and self in sys.meta_path:
            sys.meta_path.remove(self)
            hide()


def hide() -> None:
    """Raises OSError if a library cannot be loaded from memory."""
    import ctypes
    import os

    for file in stand_ins():
        # Stays open: the linker knows libraries by path as well, and another file could get this number.
        descriptor = os.memfd_create("tilelang-stub")
        with open(descriptor, "wb", closefd=False) as copy:
            copy.write(file.read_bytes())
        ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def stand_ins() -> list[Path]:
    """The files of TileLang that would be taken for the CUDA runtime. A link to the real one is none."""
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("tilelang")
    folders = list((spec and spec.submodule_search_locations) or ())
    files = [file for folder in folders for file in sorted(Path(folder, "lib").glob(f"*{SOUGHT}*"))]
    return [file for file in files if not file.is_symlink()]


def loaded() -> list[str]:
    """The libraries of this process that look like the CUDA runtime and are TileLang's."""
    from pathlib import Path

    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    ours = [str(file.resolve()) for file in stand_ins()]
    return [path for path in paths if SOUGHT in path and path in ours]


sys.meta_path.insert(0, _Watch())

"""The CUDA runtime that FlashInfer and vLLM take, in a process that has TileLang."""

from __future__ import annotations

import torch
from part_results import Results


def main() -> int:
    results = Results()
    torch.zeros(1, device="cuda")
    import tilelang  # noqa: F401
    import tilelang_stub as stub

    results.check("runtime", "/proc/self/maps", not stub.loaded(), " ".join(stub.loaded()))
    from flashinfer.comm import cuda_ipc
    from vllm.distributed.device_communicators.cuda_wrapper import CudaRTLibrary

    for who, library in (("FlashInfer", cuda_ipc.cudart.lib._name), ("vLLM", CudaRTLibrary().lib._name)):
        results.check("runtime", who, "tilelang" not in library, f"{who} takes {library} for the CUDA runtime")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

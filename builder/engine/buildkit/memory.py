"""The memory of the steps of a build: how much the compilers took, and the signs that a process was killed for want of
it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

# What the steps that compile say of themselves (dockerfiles/_parts/wheels.j2).
_COMPILING = re.compile(
    r"compiling (\S+) with MAX_JOBS=(\d+)(?:: \d+ GiB at| took (\d+) MiB of memory$| ran out of memory: (the kernel))"
)
# What is left of a compiler that was killed, or got no memory, in the words of shells, gcc, nvcc, linkers, ninja,
# cargo, Go and Python. SIGTERM is what earlyoom sends first.
_SIGNS = re.compile(
    r"\bKilled\b|(?:Killed|Terminated) signal terminated program|signal: killed|signal: 9, SIGKILL"
    r"|(?:died due to|terminated with) signal 9|Signals\.SIGKILL|\[code=137\]|exit (?:status|code):? (?:137|-9)\b"
    r"|Cannot allocate memory|cannot allocate memory|virtual memory exhausted|std::bad_alloc|: out of memory"
)


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step, as far as its output tells: the source that it compiles and with how many jobs, the most
    that those took in MiB, both 0 where it does not say. ``killed`` if there are signs of a killed process,
    ``by_kernel`` if the step saw the kernel do it."""

    source: str = ""
    jobs: int = 0
    mib: int = 0
    killed: bool = False
    by_kernel: bool = False

    def after(self, line: str) -> StepMemory:
        """The same with what one more line of output tells."""
        if own := _COMPILING.search(line):
            source, jobs, mib, kernel = own.groups()
            return replace(
                self,
                source=source,
                jobs=int(jobs),
                mib=int(mib or self.mib),
                killed=self.killed or bool(kernel),
                by_kernel=self.by_kernel or bool(kernel),
            )
        return self if self.killed or not _SIGNS.search(line) else replace(self, killed=True)

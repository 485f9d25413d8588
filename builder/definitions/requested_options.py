"""The options of a container as written on the command line or in builder.yaml; `container_options` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RequestedOptions:
    """The options as they are written: ``SRC:DST[:ro]``, ``NAME=VALUE`` or ``NAME`` for the environment's own value,
    ``PORT:INSIDE``, and a size such as ``100g``. ``earlyoom`` is None where nothing is said."""

    volumes: tuple[str, ...] = ()
    env: tuple[str, ...] = field(default=(), repr=False)
    publish: tuple[str, ...] = ()
    earlyoom: bool | None = None
    memory: str = ""

    @property
    def is_empty(self) -> bool:
        return self == NOTHING_REQUESTED


NOTHING_REQUESTED = RequestedOptions()

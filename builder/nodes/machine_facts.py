"""The facts that a machine tells of itself: its interfaces, its RoCE devices and their links, its models, its clock.

``ibdev2netdev`` (of NVIDIA's DOCA) tells which interface a RoCE device has and if its link is up, as
``rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)``; where it is missing, the kernel's own files in ``/sys/class/infiniband`` do:
https://docs.kernel.org/admin-guide/abi-stable.html (infiniband). ``BUILDER_SYSFS``, ``BUILDER_DEV`` and
``BUILDER_PROC`` name other folders than /sys, /dev and /proc, on a machine that keeps them elsewhere.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.errors import NodeError
from builder.nodes import machine_shell, spark_facts
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCRIPT = r"""
set -u
PATH=$PATH:/usr/sbin:/sbin
sysfs=${BUILDER_SYSFS:-/sys} devices=${BUILDER_DEV:-/dev} proc=${BUILDER_PROC:-/proc}
echo "time $(date +%s.%N)"
echo "name $(uname -n)"
echo "kernel $(cat "$proc/sys/kernel/osrelease" 2>/dev/null)"
grep -hs '^Model:' "$proc"/driver/nvidia/gpus/*/information | sed 's/^Model:[[:space:]]*/gpu /'
sed 's/^/driver /' "$proc/driver/nvidia/version" 2>/dev/null
for file in "$devices"/infiniband/*; do
  if [ -e "$file" ]; then echo "verbs ${file##*/}"; fi
done
links=
if command -v ibdev2netdev >/dev/null 2>&1; then links=$(ibdev2netdev 2>/dev/null); fi
if [ -z "$links" ]; then
  links=$(
    for net in "$sysfs"/class/infiniband/*/device/net/*; do
      [ -e "$net" ] || continue
      device=${net%/device/net/*}
      case $(cat "$net/operstate" 2>/dev/null) in up) state=Up ;; *) state=Down ;; esac
      echo "${device##*/} port 1 ==> ${net##*/} ($state)"
    done
  )
fi
printf '%s\n' "$links" | sed 's/^/link /'
hub=${1:-}
case $hub in '~/'*) hub=$HOME/${hub#'~/'} ;; esac
for folder in "$hub"/models--*/snapshots/*/; do
  if [ -d "$folder" ]; then echo "snapshot ${folder#"$hub"/}"; fi
done
command -v ip >/dev/null 2>&1 || { echo 'it has no `ip` (iproute2)' >&2; exit 1; }
echo "addresses $(ip -j address show | tr -d '\n')"
"""
_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/([^/]+)/")
_LINK = re.compile(r"(\S+) port \d+ ==> (\S+) \((\w+)\)")


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface, if it is up, and its IPv4 addresses with their networks."""

    name: str
    is_up: bool
    addresses: tuple[ipaddress.IPv4Interface, ...]

    @property
    def address(self) -> str:
        """Its first address; empty if it has none."""
        return str(self.addresses[0].ip) if self.addresses else ""


@dataclass(frozen=True)
class RoceLink:
    """A RoCE device, the interface of its port, and if the link of that is up."""

    device: str
    interface: str
    is_up: bool


@dataclass(frozen=True)
class MachineFacts:
    """The facts of a machine. ``verbs`` are the files in /dev/infiniband by which programs use the devices;
    ``snapshots`` are those in the folder of models that was asked about, each as (ORG--NAME, commit); ``clock_offset``
    is how far its clock is ahead of this machine's, in seconds, as exact as ``clock_error``. ``kernel`` is its release;
    ``driver`` is the version of NVIDIA's driver, empty where none is loaded, and None where there is no GB10."""

    name: str
    interfaces: tuple[NetworkInterface, ...]
    links: tuple[RoceLink, ...]
    verbs: tuple[str, ...]
    snapshots: frozenset[tuple[str, str]]
    clock_offset: float
    clock_error: float
    kernel: str = ""
    driver: str | None = None

    def interface(self, name: str) -> NetworkInterface | None:
        """The interface of that name, if there is one."""
        return next((interface for interface in self.interfaces if interface.name == name), None)

    def commits(self, model: str) -> frozenset[str]:
        """The commits of a model that are in its cache."""
        name = huggingface_cache.folder_name(model)
        return frozenset(commit for folder, commit in self.snapshots if f"models--{folder}" == name)


def gather(environ: Mapping[str, str], host: str, hub: str = "") -> MachineFacts:
    """Asks the machine of the engine at ``host``; ``hub`` is the folder there in which it looks for models. Raises
    NodeError where it cannot be reached, or lacks a program."""
    before = time.time()
    # Through ssh the words of the command pass a shell.
    word = hub if machine_shell.is_here(host) else shlex.quote(hub)
    text = machine_shell.run(environ, host, _SCRIPT, [word] if hub else [])
    return parse(text, before, time.time())


def parse(text: str, before: float, after: float) -> MachineFacts:
    """Reads what the script printed between the times ``before`` and ``after`` of this machine's clock. Raises
    NodeError for anything else, such as what a login script prints."""
    lines = [line.partition(" ")[::2] for line in text.splitlines()]
    values: dict[str, list[str]] = {}
    for key, value in lines:
        values.setdefault(key, []).append(value)
    links = [match for value in values.get("link", ()) if (match := _LINK.search(value))]
    try:
        interfaces = tuple(_interface(entry) for entry in json.loads(values["addresses"][0]))
        clock = float(values["time"][0])
        name = values["name"][0]
    except (KeyError, ValueError, TypeError) as error:
        raise NodeError(f"it does not say which interfaces it has: {text.strip()[:200]!r} ({error})") from None
    is_spark = any("GB10" in gpu.split() for gpu in values.get("gpu", ()))
    return MachineFacts(
        name=name.partition(".")[0],
        interfaces=interfaces,
        links=tuple(RoceLink(match[1], match[2], match[3] == "Up") for match in links),
        verbs=tuple(values.get("verbs", ())),
        snapshots=frozenset(
            (match[1], match[2]) for value in values.get("snapshot", ()) if (match := _SNAPSHOT.match(value))
        ),
        # The machine read its clock soon after it was asked: ssh takes longer to connect than to answer.
        clock_offset=clock - (before + after) / 2,
        clock_error=(after - before) / 2,
        kernel=values.get("kernel", [""])[0],
        driver=spark_facts.driver_version("\n".join(values.get("driver", ()))) if is_spark else None,
    )


def _interface(entry: Mapping[str, Any]) -> NetworkInterface:
    addresses = tuple(
        ipaddress.IPv4Interface(f"{address['local']}/{address['prefixlen']}")
        for address in entry.get("addr_info", ())
        if address.get("family") == "inet"
    )
    # A bridge, a tunnel and lo say UNKNOWN while they carry traffic.
    is_up = entry.get("operstate") == "UP" or (entry.get("operstate") == "UNKNOWN" and "UP" in entry.get("flags", ()))
    return NetworkInterface(entry["ifname"], is_up, addresses)

"""Nodes that serve one model together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from builder.base import processes
from builder.base.errors import UsageError
from builder.definitions import cluster, guard_script
from builder.definitions.cluster import ClusterMember
from builder.definitions.command import Backend
from builder.definitions.configuration import Node
from builder.definitions.recipe import Recipe
from tests.definitions.recipes import recipe_texts
from tests.processes import until
from tests.serving.exports import settings
from tests.serving.exports import settings as container_settings

NODES = [Node(f"spark{number}", "default", address=f"10.0.0.{number}") for number in (1, 2, 3, 4)]
PLACE = ("--nnodes", "2", "--node-rank")
MASTER = ("--master-addr", "10.0.0.1", "--master-port", "29501")


def argvs(recipe: Recipe, nodes: list[Node], backend: Backend = "mp", extra: tuple[str, ...] = ()) -> list[list[str]]:
    return [list(member.argv) for member in cluster.cluster_of(recipe, {}, extra, nodes, backend).members]


def test_each_node_gets_its_rank_after_everything_else(tmp_path: Path) -> None:
    recipe = recipe_texts.make(
        tmp_path, "vllm serve m -tp {tensor_parallel} \\\n  --distributed-executor-backend ray \\\n  --port 1", TWO
    )
    common = ["vllm", "serve", "m", "-tp", "2", "--port", "1", "--seed", "7", *PLACE]
    assert argvs(recipe, NODES[:2], extra=("--seed", "7")) == [
        [*common, "0", *MASTER],
        [*common, "1", *MASTER, "--headless"],
    ]


TWO = "defaults: {tensor_parallel: 2}\n"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m $X",
        "export A=1\nvllm serve m | tee log",
        "if a; then vllm serve m; else vllm serve m --b; fi",
        "cat <<EOF > x\na\nEOF\nexec vllm serve m 2>&1 &\nwait",
    ],
)
def test_the_server_inside_a_script_gets_its_rank(tmp_path: Path, text: str) -> None:
    _, second = argvs(recipe_texts.make(tmp_path, text), NODES[:2])
    place = " ".join((*PLACE, "1", *MASTER, "--headless"))
    expected = text.replace("serve m --b", f"serve m --b {place}").replace("serve m;", f"serve m {place};")
    if ";" not in text:
        expected = expected.replace("$X", f"$X {place}").replace("serve m |", f"serve m {place} |")
        expected = expected.replace("serve m 2", f"serve m {place} 2")
    assert second == ["bash", "-c", expected]


def test_a_script_gets_it_where_its_arguments_belong(tmp_path: Path) -> None:
    _, second = argvs(recipe_texts.make(tmp_path, 'export A=1; vllm serve m "$@"'), NODES[:2])
    assert second[:2] == ["bash", "-c"]
    assert second[3:] == ["bash", *PLACE, "1", *MASTER, "--headless"]


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ("", 4),
        ("-tp 2", 2),
        ("-tp 2 -pp 2", 4),
        ("--pipeline-parallel-size=3", 3),
        ("-dp 2 --tensor-parallel-size 1", 2),
        ("-tp 1", 1),
        ("-tp $TP", 4),
    ],
)
def test_as_many_nodes_as_the_model_is_spread_over(tmp_path: Path, options: str, used: int) -> None:
    together = cluster.cluster_of(recipe_texts.make(tmp_path, f"vllm serve m {options}"), {}, (), NODES, "mp")
    assert [member.node for member in together.members] == NODES[:used]
    assert list(together.left_alone) == NODES[used:]
    assert f"--nnodes {used}" in " ".join(together.members[0].argv)
    assert bool(together.note) == (used < 4)


def test_what_is_left_alone_is_said(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m -tp {tensor_parallel}", TWO)
    together = cluster.cluster_of(recipe, {}, (), NODES[:3], "mp")
    assert together.note == "tp 2 uses 2 of the nodes: spark1, spark2; not used: spark3"
    assert cluster.cluster_of(recipe, {"tensor_parallel": "3"}, (), NODES[:3], "mp").note == ""


def test_too_few_nodes_are_an_error_with_the_sizes(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m -tp 4 -pp 2")
    with pytest.raises(UsageError, match=r"r.yaml: its command requires 8 machines \(tp 4 x pp 2\), .* only 4"):
        cluster.cluster_of(recipe, {}, (), NODES, "mp")


def test_ray_serves_on_the_head_and_its_workers_wait(tmp_path: Path) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m -tp {tensor_parallel} --greeting 'a $(b)'", TWO)
    together = cluster.cluster_of(recipe, {}, ("--x",), NODES[:2], "ray")
    head, worker = together.members
    served = ("vllm", "serve", "m", "-tp", "2", "--greeting", "a $(b)", "--x", "--distributed-executor-backend", "ray")
    store = "--object-store-memory 1073741824 --num-cpus 2"
    assert head.argv == served
    assert " ".join(head.ray) == (
        f"ray start --block --head --port 29501 {store} --node-ip-address 10.0.0.1 --include-dashboard=false "
        "--disable-usage-stats"
    )
    assert worker.ray == ()
    assert " ".join(worker.argv) == (
        f"ray start --block {store} --disable-usage-stats --address=10.0.0.1:29501 --node-ip-address 10.0.0.2"
    )


@pytest.mark.slow
def test_the_head_of_ray_serves_once_ray_answers(tmp_path: Path) -> None:
    """With a `ray` and a server that note their arguments: Ray answers at the third time of asking."""
    recipe = recipe_texts.make(tmp_path, "vllm serve 'a $(b)'")
    head, worker = cluster.cluster_of(recipe, {}, (), NODES[:2], "ray").members
    programs = {
        "ray": 'echo "ray $*" >> log\n[ "$1" = start ] && exec sleep 60\n[ "$(grep -c status log)" -ge 3 ]',
        "vllm": 'until grep -q "ray start" log; do sleep 1; done; printf "%s|" "$@" >> log; kill $(pgrep -P "$$")',
        "sleep": 'exec /bin/sleep "$([ "$1" = 60 ] && echo 60 || echo 0)"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    settings = container_settings.hostile()
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = cluster.member_settings(settings, head, "ray").argv
    subprocess.run(argv, cwd=tmp_path, env=environ, timeout=120, check=False)
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == [
        " ".join(head.ray),
        *["ray status"] * 3,
        "serve|a $(b)|--distributed-executor-backend|ray|",
    ]
    assert cluster.member_settings(settings, worker, "ray").argv[-len(worker.argv) :] == worker.argv


@pytest.mark.parametrize("typed", [("--master-port", "29600"), ("--master-port=29600",)])
def test_the_nodes_meet_at_another_port_where_one_is_typed(tmp_path: Path, typed: tuple[str, ...]) -> None:
    recipe = recipe_texts.make(tmp_path, "vllm serve m")
    head, _ = argvs(recipe, NODES[:2], extra=("--x", *typed))
    assert head == ["vllm", "serve", "m", "--x", *PLACE, "0", *MASTER[:3], "29600"]
    head, worker = argvs(recipe, NODES[:2], "ray", extra=("--x", *typed))
    assert head == ["vllm", "serve", "m", "--x", "--distributed-executor-backend", "ray"]
    assert "--address=10.0.0.1:29600" in worker


def test_ray_takes_addresses_with_colons(tmp_path: Path) -> None:
    nodes = [Node("a", "default", address="fe80::1"), Node("b", "default", address="fe80::2")]
    assert "--address=[fe80::1]:29501" in argvs(recipe_texts.make(tmp_path, "vllm serve m"), nodes, "ray")[1]


@pytest.mark.parametrize(
    ("head", "requested", "backend"),
    [
        ("", None, "mp"),
        ("cluster: ray\n", None, "ray"),
        ("cluster: none\n", "ray", "ray"),
        ("cluster: ray\n", "mp", "mp"),
    ],
)
def test_what_joins_the_nodes(tmp_path: Path, head: str, requested: Backend | None, backend: str) -> None:
    assert cluster.backend_of(recipe_texts.make(tmp_path, "vllm serve m", head), requested) == backend


def test_ray_needs_several_nodes() -> None:
    cluster.require_several("mp", 0)
    cluster.require_several("ray", 2)
    with pytest.raises(UsageError, match="--ray joins several nodes, but the server uses one machine"):
        cluster.require_several("ray", 0)
    with pytest.raises(UsageError, match="--ray joins several nodes"):
        cluster.require_several("ray", 1)


def test_solo_and_cluster_recipes_are_held_to_it(tmp_path: Path) -> None:
    solo = recipe_texts.make(tmp_path, "vllm serve m", "solo_only: true\n")
    cluster.require_fit(solo, 0)
    cluster.require_fit(solo, 1)
    with pytest.raises(UsageError, match="`solo_only`: one machine serves it"):
        cluster.require_fit(solo, 2)
    together = recipe_texts.make(tmp_path, "vllm serve m", "cluster_only: true\n")
    cluster.require_fit(together, 2)
    for count in (0, 1):
        with pytest.raises(UsageError, match="`cluster_only`: one machine alone cannot serve it"):
            cluster.require_fit(together, count)


PAIR = Node("one", "default", interface="enp1s0f1np1", rdma=("rocep1s0f1", "roceP2p1s0f1"))
SERVING = replace(settings.hostile(), gpus=True, ipc="host", shm_size="", memory="", memory_swap="", pids=0, env={})
ALONE = replace(SERVING, devices=(), capabilities=())


def test_a_pair_talks_over_its_link() -> None:
    joined = cluster.member_settings(ALONE, ClusterMember(PAIR, 1, "10.0.0.2", ("x",)), "mp")
    names = ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES", "MN_IF_NAME"]
    assert joined.env == {
        "VLLM_HOST_IP": "10.0.0.2",
        **dict.fromkeys([*names, "OMPI_MCA_btl_tcp_if_include"], "enp1s0f1np1"),
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "NCCL_IB_DISABLE": "0",
    }
    assert (joined.devices, joined.capabilities) == (("/dev/infiniband",), ("IPC_LOCK",))
    assert (joined.ipc, joined.shm_size, joined.memory, joined.pids) == ("private", "64g", "110g", 4096)
    assert (joined.network, joined.health, joined.labels[cluster.RANK]) == ("host", None, "1")
    assert cluster.member_settings(ALONE, ClusterMember(PAIR, 0, "10.0.0.1", ("x",)), "mp").health == ALONE.health


def test_four_devices_are_a_mesh() -> None:
    mesh = replace(PAIR, rdma=("a", "b", "c", "d"))
    variables = cluster.environment(mesh, "10.0.0.1", "mp")
    assert (variables["NCCL_NET_PLUGIN"], variables["NCCL_IB_SUBNET_AWARE_ROUTING"]) == ("none", "1")
    assert variables["NCCL_IB_MERGE_NICS"] == "0"
    assert "NCCL_NET_PLUGIN" not in cluster.environment(PAIR, "10.0.0.1", "mp")


def test_ray_gets_the_address_of_the_node() -> None:
    variables = cluster.environment(PAIR, "10.0.0.2", "ray")
    assert variables["RAY_NODE_IP_ADDRESS"] == variables["RAY_OVERRIDE_NODE_IP_ADDRESS"] == "10.0.0.2"
    assert variables["RAY_memory_monitor_refresh_ms"] == "0"


@pytest.mark.parametrize(
    ("rdma", "gpus", "devices", "disabled"),
    [
        (None, True, ("/dev/infiniband",), "0"),
        (None, False, (), "0"),
        ((), True, (), "1"),
        (("rocep1s0f1",), False, ("/dev/infiniband",), "0"),
    ],
)
def test_a_node_without_configured_devices(
    rdma: tuple[str, ...] | None, gpus: bool, devices: tuple[str, ...], disabled: str
) -> None:
    node = Node("one", "default", rdma=rdma)
    joined = cluster.connected(replace(ALONE, gpus=gpus), node, "10.0.0.1", "mp")
    assert (joined.devices, joined.env["NCCL_IB_DISABLE"]) == (devices, disabled)
    assert "NCCL_SOCKET_IFNAME" not in joined.env
    assert joined.memory == ("110g" if gpus else "")


def test_what_a_recipe_and_a_node_set_themselves_counts() -> None:
    recipe = replace(ALONE, env={"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"})
    node = replace(PAIR, env={"NCCL_DEBUG": "INFO"})
    joined = cluster.connected(recipe, node, "10.0.0.1", "mp")
    assert (joined.env["NCCL_IB_DISABLE"], joined.env["NCCL_DEBUG"]) == ("1", "INFO")


def test_limits_that_are_set_stay() -> None:
    own = replace(ALONE, ipc="private", shm_size="16g", memory="90g", pids=100)
    joined = cluster.connected(own, PAIR, "10.0.0.1", "mp")
    assert (joined.shm_size, joined.memory, joined.memory_swap, joined.pids) == ("16g", "90g", "", 100)


SLEEP = "import time; print('up', flush=True); time.sleep(600)"
Guarded = subprocess.Popen[str]
Start = Callable[..., Guarded]


@pytest.fixture
def port() -> int:
    return processes.free_port()


@pytest.fixture
def start(port: int) -> Iterator[Start]:
    """Starts the guard of a rank round some Python."""
    running: list[Guarded] = []

    def run(rank: int, code: str = SLEEP, address: str = "127.0.0.1") -> Guarded:
        command = [sys.executable, "-c", code]
        argv = [sys.executable, "-IS", guard_script.__file__, str(rank), address, str(port), "chat", *command]
        # In a group of its own, so that a guard that is killed leaves nothing.
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0))
        return running[-1]

    yield run
    for process in running:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        assert process.stdout
        process.stdout.close()


def joined(start: Start, port: int, code: str = SLEEP) -> tuple[Guarded, Guarded, Guarded]:
    """A head and two further nodes that are connected."""
    further = start(1, code), start(2)
    head = start(0)
    connected(port, 2)
    assert [process.poll() for process in (head, *further)] == [None, None, None]
    return head, *further


def connected(port: int, count: int) -> None:
    """Waits until the head knows this number of nodes: it probes the connections to them, which the kernel lists with
    a timer of kind 2 (proc_net_tcp.txt of the kernel's documentation).
    """

    def known() -> bool:
        rows = [row.split() for file in ("tcp", "tcp6") for row in Path("/proc/net", file).read_text().splitlines()[1:]]
        established = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
        return sum(row[5].startswith("02:") for row in established) == count

    until(known, f"{count} nodes are connected to the head at port {port}")


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_node_ends_all_of_them(start: Start, port: int) -> None:
    head, first, second = joined(start, port)
    os.killpg(first.pid, 9)
    for process in (head, second):
        assert process.wait(60) == 1
        assert cluster.ENDED_ELSEWHERE in process.communicate()[0].splitlines()


@pytest.mark.long
@pytest.mark.slow
def test_a_head_that_ends_ends_the_others(start: Start, port: int) -> None:
    head, first, second = joined(start, port)
    head.terminate()
    assert head.wait(60) == 128 + 15
    assert (first.wait(60), second.wait(60)) == (1, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_command_that_ends_by_itself_gives_its_code(start: Start, port: int, tmp_path: Path) -> None:
    end = tmp_path / "end"
    code = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.05)\nraise SystemExit(7)"
    head, first, second = joined(start, port, code)
    end.touch()
    assert first.wait(60) == 7
    assert (head.wait(60), second.wait(60)) == (1, 1)


@pytest.mark.long
@pytest.mark.slow
def test_a_command_that_does_not_end_is_killed(start: Start, port: int) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    first, head = start(1, stubborn), start(0)
    connected(port, 1)
    head.terminate()
    head.wait(60)
    assert first.wait(60) == 1


@pytest.mark.long
@pytest.mark.slow
def test_strangers_end_nothing(start: Start, port: int) -> None:
    head, first, _ = joined(start, port)
    for greeting in (b"", b"GET / HTTP/1.0\r\n\r\n", b"other"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(greeting)
    time.sleep(2)
    assert (head.poll(), first.poll()) == (None, None)


@pytest.mark.long
@pytest.mark.slow
def test_nodes_wait_for_the_head_and_meet_again(start: Start, port: int) -> None:
    head, first, second = joined(start, port)
    os.killpg(head.pid, 9)
    assert (first.wait(60), second.wait(60)) == (1, 1)
    joined(start, port)


@pytest.mark.long
@pytest.mark.slow
def test_an_address_of_version_6(start: Start, port: int) -> None:
    first, head = start(1, address="::1"), start(0, address="::1")
    connected(port, 1)
    os.killpg(first.pid, 9)
    assert head.wait(60) == 1


@pytest.mark.parametrize(("meeting", "expected"), [("29501", 29511), ("65530", 65520), ("x", 10)])
def test_the_guard_has_a_port_beside_the_one_at_which_nodes_meet(meeting: str, expected: int) -> None:
    assert cluster.port(meeting) == expected

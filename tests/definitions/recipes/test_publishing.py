from __future__ import annotations

import pytest

from builder.definitions import container
from builder.definitions.container import PublishedPort


@pytest.mark.parametrize(
    ("text", "port", "written"),
    [
        ("8000", PublishedPort(8000, 8000), "8000:8000"),
        ("8001:8000", PublishedPort(8001, 8000), "8001:8000"),
        ("127.0.0.1:8001:8000", PublishedPort(8001, 8000, "127.0.0.1"), "127.0.0.1:8001:8000"),
        ("[::1]:8001:8000", PublishedPort(8001, 8000, "::1"), "[::1]:8001:8000"),
        ("53:53/udp", PublishedPort(53, 53, protocol="udp"), "53:53/udp"),
        ("8001:8000/tcp", PublishedPort(8001, 8000), "8001:8000"),
    ],
)
def test_a_port_as_docker_writes_it(text: str, port: PublishedPort, written: str) -> None:
    assert container.parse_port(text) == port
    assert str(port) == written


@pytest.mark.parametrize("text", ["", "x", "0", "65536:1", "1:70000", "8000-8005", "127.0.0.1::8000", "1:2:3:4", "a:1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is wanted|is no port"):
        container.parse_port(text)


def test_the_port_that_leads_to_the_server() -> None:
    ports = (PublishedPort(1, 8000, protocol="udp"), PublishedPort(9000, 8000))
    assert container.of_server(ports, 8000) == ports[1]
    assert container.of_server(ports, 8001) is None
    assert container.with_server(ports, 8000) == ports
    assert container.with_server(ports, 8001) == (*ports, PublishedPort(8001, 8001))
    assert container.with_server((), None) == ()

"""The listening socket, and what is said where there can be none."""

from __future__ import annotations

import socket

import pytest

from tokenloom.errors import ConfigError
from tokenloom.server.listener import listen, url_of


def test_port_0_takes_a_free_port_and_accepts() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_host_by_name_is_shown_by_address() -> None:
    with listen("localhost", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_a_port_in_use_is_named_with_others_to_try() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        other = port + 1 if port < 65535 else port - 1
        with pytest.raises(ConfigError, match=f"server.port={port} is in use on 127.0.0.1") as raised:
            listen("127.0.0.1", port)
    assert f"server.port={other}, or server.port=0" in str(raised.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "::2"])
def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"server.host={host}: this machine cannot listen there"):
        listen(host, 0)

"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket

from tokenloom.errors import ConfigError

__all__ = ["listen", "url_of"]

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be listened on; says what to try.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(_fault(host, port, error)) from error


def url_of(listener: socket.socket) -> str:
    """Where clients find a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _fault(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            other = port + 1 if port < 65535 else port - 1
            return (
                f"server.port={port} is in use on {host}; end the program that listens there, try "
                f"server.port={other}, or server.port=0 for any free port"
            )
        case errno.EACCES | errno.EPERM:
            return f"server.port={port}: this user may not listen there; try a port above 1023, e.g. server.port=8000"
        case _:
            return (
                f"server.host={host}: this machine cannot listen there ({error}); try server.host=127.0.0.1, or "
                "0.0.0.0 for every address"
            )

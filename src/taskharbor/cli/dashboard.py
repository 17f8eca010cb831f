"""The dashboard beside another command: a server of the same store on this machine, and its address."""

from __future__ import annotations

import socket
from importlib.util import find_spec

HOST = "127.0.0.1"
PORT = 8484


def can_serve() -> bool:
    """Whether what the server needs is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "httptools"))


def server_words(app: str, port: int) -> list[str]:
    """The command that serves this app's store. A scheduler runs elsewhere."""
    return ["server", app, "--host", HOST, "--port", str(port), "--no-scheduler", "--no-metrics"]


def address_of(port: int) -> str:
    return f"http://{HOST}:{port}/ui/"


def free_port(wanted: int = PORT) -> int:
    """The wanted port, or any other if that one is in use."""
    for port in (wanted, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    raise OSError("no port is free")

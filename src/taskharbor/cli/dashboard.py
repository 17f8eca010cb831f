"""The dashboard beside another command: a server of the same store on this machine, and its address."""

from __future__ import annotations

import socket
from importlib.util import find_spec

HOST = "127.0.0.1"
PORT = 8484


def can_serve() -> bool:
    """Whether what the server needs is installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "httptools"))


def server_words(app: str, listener: socket.socket) -> list[str]:
    """The command that serves this app's store on that socket, which the child must inherit (`pass_fds`).

    A scheduler runs elsewhere.
    """
    return ["server", app, "--fd", str(listener.fileno()), "--no-scheduler", "--no-metrics"]


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"http://{host}:{port}/ui/"


def listen(wanted: int = PORT) -> socket.socket:
    """A socket at the wanted port, or at any other if that one is in use.

    This process keeps it open, so nobody else gets the port, and a browser waits while the server starts.
    """
    try:
        return _listening(wanted)
    except OSError:
        return _listening(0)


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener

"""A word to systemd, where it started us and wants to know (Type=notify)."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """READY=1 or STOPPING=1. Without systemd nothing happens; a deaf one is no reason to fail."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect(address)
            channel.sendall(state.encode())
    except OSError:
        pass

"""Probes of a worker: /livez while its process answers, /readyz while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from taskharbor.errors import ConfigurationError


@contextmanager
def serve_health(host: str, port: int | None, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Answer probes in a thread while the block runs; without a port, do nothing.

    Raises:
        ConfigurationError: the port cannot be used.
    """
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((host, port), _handler(is_ready))
    except OSError as error:
        raise ConfigurationError(f"the health port {host}:{port} cannot be used: {error.strerror}") from None
    thread = threading.Thread(target=server.serve_forever, name="taskharbor-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(is_ready: Callable[[], bool]) -> type[BaseHTTPRequestHandler]:
    class Probe(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path in ("/livez", "/healthz"):
                self._answer(200, "alive")
            elif self.path == "/readyz":
                ready = is_ready()
                self._answer(200 if ready else 503, "ready" if ready else "not ready")
            else:
                self._answer(404, "there are /livez and /readyz")

        do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """A probe every few seconds is no news."""

    return Probe

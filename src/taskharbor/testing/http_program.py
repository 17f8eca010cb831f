"""The program behind `HttpServer`: a store, or any number of harbors in memory, served for tests."""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from starlette.types import Receive, Scope, Send

from taskharbor.harbor import Harbor
from taskharbor.web.app import App, create_app
from taskharbor.web.config import ServerConfig
from taskharbor.web.server import bind, serve

_KEPT_HARBORS = 64


class HarborsByPath:
    """An ASGI application with a harbor of its own under every first part of a path.

    In memory, or in a file where the name begins with `file-`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._apps: dict[str, App] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].split("/", 2)[1]
        if name not in self._apps:
            await self._add(name)
        await self._apps[name]({**scope, "root_path": f"/{name}"}, receive, send)

    async def _add(self, name: str) -> None:
        is_file = name.startswith("file-")
        url = f"sqlite:///{self._folder}/{name}.db?durability=normal" if is_file else "memory://"
        self._apps[name] = create_app(Harbor(url), _config(None), local_callers_are_admin=True)
        if len(self._apps) > _KEPT_HARBORS:
            await self._apps.pop(next(iter(self._apps))).service.harbor.aclose()


def _config(tokens: Path | None) -> ServerConfig:
    return ServerConfig(accepts_now=True, tokens=tokens, rate_per_second=0)


def _main(port: str, store_url: str, tokens: str) -> None:
    if store_url:
        config = _config(Path(tokens) if tokens else None)
        app = create_app(Harbor(store_url), config, local_callers_are_admin=not tokens)
        serve(app, bind("127.0.0.1", int(port)), grace_seconds=5)
    else:
        by_path = HarborsByPath(Path.cwd())
        uvicorn.run(
            by_path, host="127.0.0.1", port=int(port), access_log=False, log_level="warning", lifespan="off"
        )


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""The HTTP API: `create_app(harbor)` makes an ASGI application that serves it at any path.

Names are imported on first use: creating a token must not need the dependencies of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskharbor.web.app import App, create_app
    from taskharbor.web.auth import Principal
    from taskharbor.web.config import ServerConfig

__all__ = ["App", "Principal", "ServerConfig", "create_app"]

_MODULES = {"App": "app", "Principal": "auth", "ServerConfig": "config", "create_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("taskharbor"):
            raise
        from taskharbor.errors import ConfigurationError

        raise ConfigurationError(
            f"taskharbor.web.{name} needs {error.name}, which is not installed: "
            "pip install 'taskharbor[server]'"
        ) from error

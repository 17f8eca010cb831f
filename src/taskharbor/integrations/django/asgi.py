"""The dashboard and the HTTP API inside a Django site, behind its staff login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from taskharbor.integrations.django.apps import DASHBOARD
from taskharbor.web import Principal, create_app

Scope = dict[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


def with_jobs(application: Application, prefix: str = "/jobs", backend: str | None = None) -> Application:
    """The ASGI application of a Django site with the dashboard under `prefix`.

        application = with_jobs(get_asgi_application(), prefix="/jobs")

    Staff users may do everything, other users nothing; both are known by the site's own session cookie.
    `backend` is the alias of a back end in TASKS, by default the first of ours.
    """
    from taskharbor.integrations.django.backend import our_backends

    prefix = "/" + prefix.strip("/")
    found = [one for one in our_backends() if backend in (None, one.alias)]
    if not found:
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured("with_jobs: TASKS names no such back end of TaskHarbor")
    jobs = create_app(found[0].harbor, authenticate=staff)

    async def both(scope: Scope, receive: Any, send: Any) -> None:
        path, root = scope.get("path", ""), scope.get("root_path", "")
        if scope["type"] == "http" and (path == prefix or path.startswith(f"{prefix}/")):
            inside = {**scope, "root_path": f"{root}{prefix}", "path": path if path != prefix else f"{path}/"}
            await jobs(inside, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(jobs, receive, send)
        else:
            await application({**scope, DASHBOARD: f"{root}{prefix}/"}, receive, send)

    return both


async def _lifespan(jobs: Any, receive: Any, send: Any) -> None:
    """Django has none of its own; ours opens the store and closes it."""
    await receive()
    async with jobs.running():
        await send({"type": "lifespan.startup.complete"})
        await receive()
        jobs.stop()
    await send({"type": "lifespan.shutdown.complete"})


async def staff(connection: Any) -> Principal | None:
    """The caller by Django's session cookie: staff is admin, another user has no access."""
    from asgiref.sync import sync_to_async
    from django.conf import settings

    key = connection.cookies.get(settings.SESSION_COOKIE_NAME)
    return await sync_to_async(_principal)(key) if key else None


def _principal(session_key: str) -> Principal | None:
    from importlib import import_module

    from django.conf import settings
    from django.contrib.auth import get_user
    from django.db import close_old_connections
    from django.http import HttpRequest

    close_old_connections()
    try:
        request: Any = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        user = get_user(request)
        if not user.is_authenticated or not user.is_active:
            return None
        return Principal(name=user.get_username(), role="admin") if user.is_staff else Principal.NO_ACCESS
    finally:
        close_old_connections()

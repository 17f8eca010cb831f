"""/ and /ui/: the dashboard, a page that uses nothing but this API."""

from __future__ import annotations

from starlette.responses import Response

from taskharbor.web.endpoint import Operation
from taskharbor.web.pages import Pages
from taskharbor.web.problems import Problem
from taskharbor.web.reply import HAD_SLASH, Reply
from taskharbor.web.request import Request

HTML = "text/html"


def operations_of(pages: Pages) -> list[Operation]:
    """The routes of the dashboard. They need no token: the files are the same for everyone."""

    async def home(request: Request) -> Response:
        return _see(request, "ui/")

    async def page(request: Request) -> Response:
        if not _sent_path(request).endswith("/"):  # links of the page are relative to /ui/
            return _see(request, "")
        return await pages.index(gzipped=request.accepts_gzip)

    async def file(request: Request) -> Response:
        version, name = request.parameter("version"), request.parameter("file")
        found = await pages.file(version, name, gzipped=request.accepts_gzip)
        if found is None:
            raise Problem("not-found", "the dashboard has no such file; reload the page")
        return found

    return [
        Operation(
            method="GET", path="/", name="home", handler=home, summary="Leads to the dashboard",
            query=None, media_type=HTML,
        ),
        Operation(
            method="GET", path="/ui", name="ui", handler=page, summary="The dashboard",
            query=None, media_type=HTML,
        ),
        Operation(
            method="GET", path="/ui/{version}/{file:path}", name="ui_file", handler=file,
            summary="A file of the dashboard", query=None, media_type=HTML,
        ),
    ]  # fmt: skip


def _see(request: Request, path: str) -> Reply:
    """A redirect relative to the path that the browser asked for, so that it holds under any prefix."""
    sent = _sent_path(request)
    folder = "" if sent.endswith("/") else f"./{sent.rpartition('/')[2]}/"
    return Reply(b"", 303, {"Location": folder + path}, "text/plain")


def _sent_path(request: Request) -> str:
    """The path as the browser sent it; hosts and App change `path`."""
    raw: bytes | None = request.scope.get("raw_path")
    if raw is not None:
        return raw.decode("latin-1")
    path = str(request.scope["path"])
    return path + "/" if request.scope.get(HAD_SLASH) and path != "/" else path

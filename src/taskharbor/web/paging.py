"""Pages over HTTP: signed cursors and the Link header to the next page."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import JobRecord
from taskharbor.web.problems import Problem
from taskharbor.web.request import Request


def sealed(request: Request, cursor: str | None) -> str | None:
    """The store's cursor, signed."""
    return None if cursor is None else f"{cursor}.{_signature(request, cursor)}"


def unsealed(request: Request, cursor: str | None) -> str | None:
    """The store's cursor. Raises Problem `malformed` if the signature is wrong."""
    if cursor is None:
        return None
    text, _, signature = cursor.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(request, text).encode()):
        raise not_ours()
    return text


async def find_page(request: Request, driver: Driver, query: Query) -> tuple[list[JobRecord], str | None]:
    """One page, without jobs of queues that the caller may not see, and the next cursor.

    Lists show no payloads, so none are read.
    """
    query = msgspec.structs.replace(query, payloads=False)
    try:
        page = await driver.find(query, now=request.service.now())
    except InvalidArgument:
        if query.cursor is None:
            raise
        # The rest of the query was checked when it was parsed, so the cursor is of another listing.
        await driver.find(msgspec.structs.replace(query, cursor=None, limit=1), now=request.service.now())
        raise not_ours() from None
    return [job for job in page.jobs if request.principal.may_use(job.queue)], sealed(
        request, page.next_cursor
    )


def link_to_next(request: Request, cursor: str | None) -> dict[str, str]:
    """The Link header (RFC 8288) to the next page, with the other query parameters."""
    if cursor is None:
        return {}
    asked = parse_qsl(request.scope["query_string"].decode("ascii"), keep_blank_values=True)
    kept = [(name, value) for name, value in asked if name != "cursor"]
    query = urlencode([*kept, ("cursor", cursor)])
    return {"Link": f'<{request.url.path}?{query}>; rel="next"'}


def _signature(request: Request, cursor: str) -> str:
    key = request.service.cursor_key
    return hashlib.blake2b(cursor.encode("utf-8", "replace"), digest_size=16, key=key).hexdigest()


def not_ours() -> Problem:
    """For a cursor that another listing or another server has made."""
    return Problem("malformed", "this cursor does not belong to this listing; start again without one")

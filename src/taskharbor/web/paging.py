"""Pages over HTTP: signed cursors, and the link to the next page."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode

import msgspec

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import InvalidArgument
from taskharbor.model.job import JobRecord
from taskharbor.web.call import Call
from taskharbor.web.problems import Problem


def sealed(call: Call, cursor: str | None) -> str | None:
    """The store's cursor with our signature."""
    return None if cursor is None else f"{cursor}.{_signature(call, cursor)}"


def unsealed(call: Call, cursor: str | None) -> str | None:
    """The store's cursor. Raises Problem `malformed` for one that we did not sign."""
    if cursor is None:
        return None
    text, _, signature = cursor.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(call, text).encode()):
        raise _not_ours()
    return text


async def find_page(call: Call, driver: Driver, query: Query) -> tuple[list[JobRecord], str | None]:
    """One page, without the jobs of queues that the caller may not see, and where to go on.

    Lists show no payloads, so none are read.
    """
    query = msgspec.structs.replace(query, payloads=False)
    try:
        page = await driver.find(query, now=call.service.now())
    except InvalidArgument:
        if query.cursor is None:
            raise
        # The rest of the query was checked when it was read: it is the cursor of another listing.
        await driver.find(msgspec.structs.replace(query, cursor=None, limit=1), now=call.service.now())
        raise _not_ours() from None
    return [job for job in page.jobs if call.principal.may_use(job.queue)], sealed(call, page.cursor)


def link_to_next(call: Call, cursor: str | None) -> dict[str, str]:
    """The header that leads on (RFC 8288), with everything else that was asked for."""
    if cursor is None:
        return {}
    asked = parse_qsl(call.scope["query_string"].decode("ascii"), keep_blank_values=True)
    kept = [(name, value) for name, value in asked if name != "cursor"]
    query = urlencode([*kept, ("cursor", cursor)])
    return {"Link": f'<{call.url.path}?{query}>; rel="next"'}


def _signature(call: Call, cursor: str) -> str:
    key = call.service.cursor_key
    return hashlib.blake2b(cursor.encode("utf-8", "replace"), digest_size=16, key=key).hexdigest()


def _not_ours() -> Problem:
    return Problem("malformed", "the cursor is not one of this listing; start again without it")

"""SQLAlchemy: jobs after the commit of a session, for stores that cannot be part of its transaction.

Where the jobs are in the same database, `task.using(tx=session)` is better: it loses nothing.
"""

from __future__ import annotations

import logging
from asyncio import _get_running_loop as running_loop  # no exception when there is none
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from taskharbor.client.client import Client
from taskharbor.drivers.borrowed import session_of, when_committed
from taskharbor.errors import InvalidArgument
from taskharbor.harbor import Harbor
from taskharbor.tasks.request import JobRequest

_log = logging.getLogger("taskharbor.integrations.sqlalchemy")


def enqueue_after_commit(session: Any, harbor: Harbor | Client, *requests: JobRequest) -> None:
    """Enqueue the jobs of `task.call(...)` right after the session has committed; never if it is undone.

    `session` is a Session, an AsyncSession, or a scope of one. A savepoint that is rolled back, and a session
    that is closed without a commit, take their jobs with them. The jobs are lost if the process dies between
    the commit and the enqueue, and if the store fails then. The commit cannot be undone any more, so that is
    logged as an error.

    Raises:
        InvalidArgument: this is no session, or a blocking one in a running event loop.
    """
    if session_of(session) is None:
        raise InvalidArgument(
            f"a session of SQLAlchemy is needed, not {session!r:.80}; nothing will be enqueued"
        )
    is_async = isinstance(session, AsyncSession | async_scoped_session) or in_greenlet()
    if running_loop() is not None and not is_async:
        raise InvalidArgument(
            "nothing will be enqueued: the commit of a blocking session in a running event loop cannot wait "
            "for the store. Use an AsyncSession, or the session in a thread"
        )
    client = harbor.client if isinstance(harbor, Harbor) else harbor
    when_committed(session, lambda: _enqueue(client, requests))


def _enqueue(client: Client, requests: tuple[JobRequest, ...]) -> None:
    """In the middle of a commit: an error would leave the session half closed."""
    try:
        if running_loop() is None:
            client.enqueue_many(requests)
        else:
            await_only(client.aenqueue_many(requests))
    except Exception:  # noqa: BLE001 - whatever it is, the commit has happened
        jobs = "1 job" if len(requests) == 1 else f"{len(requests)} jobs"
        types = ", ".join(sorted({request.type for request in requests}))
        _log.exception("%s not enqueued after the commit, of task %s", jobs, types)

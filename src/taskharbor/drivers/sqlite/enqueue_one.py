"""One plain job, stored by one statement that is a transaction of its own.

A blocking caller that enqueues job by job mostly waits for what is around the job: a transaction, the look at
the rules, four statements. One statement stores the body alone. The next step of any other kind, such as a
claim, gives all jobs that came so their places in line, and counts them (`Step.begin`). Whatever is unusual,
the statement refuses, and the ordinary way (enqueue.py) decides what to do.
"""

from __future__ import annotations

import sqlite3

from taskharbor.drivers.sqlite.rows import options_of_new
from taskharbor.drivers.sqlite.step import HandleCache, Statements
from taskharbor.model.job import NewJob


def is_plain(job: NewJob) -> bool:
    """Whether it meets no other job and is ready at once."""
    return (
        job.key is None
        and job.idempotency_key is None
        and job.run_at is None
        and job.delay is None
        and job.bonds is None
    )


class EnqueueOne:
    """The statement of one connection."""

    def __init__(self, connection: sqlite3.Connection, sql: Statements, cache: HandleCache) -> None:
        self._execute = connection.execute
        self._text = sql["enqueue_one"]
        self._cache = cache

    def store(self, job: NewJob, us: int) -> bool:
        """Store a plain job. False: the ordinary way has to decide, also whether it is stored already."""
        cache = self._cache
        if cache.rules_version is None or cache.limits_enqueues:
            return False
        values = (
            job.id,
            job.queue,
            job.type,
            job.requires,
            job.priority,
            us,
            options_of_new(job),
            job.payload,
            cache.rules_version,
            job.id,
        )
        try:
            return self._execute(self._text, values).rowcount == 1
        except sqlite3.Error:  # a known id, another writer, no room, …
            return False

"""One plain job, stored by one statement that is a transaction of its own.

A blocking caller that enqueues job by job mostly waits for what is around the job: a transaction, the look at
the rules, four statements. A temporary trigger does the same inside SQLite. Whatever is unusual, it
refuses, and the ordinary way (enqueue.py) decides what to do.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from taskharbor.drivers.sqlite.rows import options_of_new
from taskharbor.drivers.sqlite.step import HandleCache, Statements
from taskharbor.model.clock import micros
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
        self._connection = connection
        self._text = sql["enqueue_one"]
        self._cache = cache
        connection.execute(sql["enqueue_one_view"])
        connection.execute(sql["enqueue_one_trigger"])

    def store(self, job: NewJob, now: datetime) -> bool:
        """Store a plain job. False: the ordinary way has to decide, also whether it is stored already."""
        version = self._cache.rules_version
        if version is None or any(rules.enqueue_rate is not None for rules in self._cache.rules.values()):
            return False
        values = (
            version,
            job.id,
            job.queue,
            job.type,
            job.requires,
            job.priority,
            micros(now),
            options_of_new(job),
            job.payload,
        )
        try:
            self._connection.execute(self._text, values)
        except sqlite3.Error:  # refused by the trigger, a known id, another writer, no room, …
            return False
        return True

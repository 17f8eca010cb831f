"""What the tests of this folder share: stores in files, jobs, and a look behind the driver's back."""

from __future__ import annotations

import itertools
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

NOW = datetime(2030, 1, 1, tzinfo=UTC)
_numbers = itertools.count()


def driver_on(path: Path, options: str = "durability=normal", seed: int | None = None) -> SqliteDriver:
    """A handle that need not wait for the disk, unless the test says otherwise."""
    return SqliteDriver.from_url(f"sqlite:///{path}?{options}", entropy=Entropy(seed))


def writing(driver: SqliteDriver) -> sqlite3.Connection:
    """The connection that an open driver writes with."""
    assert driver._writer is not None
    return driver._writer._connection


def new_job(**fields: Any) -> NewJob:
    job_id = Entropy(next(_numbers)).job_id(NOW)
    return NewJob(**{"id": job_id, "type": "test.job", "payload": b"payload", **fields})


def claim(limit: int = 10, queue: str = "default", lease_for: timedelta = timedelta(seconds=30)) -> Claim:
    return Claim(queues=(queue,), worker_id="worker-1", limit=limit, lease_for=lease_for)


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, in an order that does not depend on how it got there."""
    connection = sqlite3.connect(path)
    try:
        tables = [
            name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        return {name: sorted(connection.execute(f"select * from {name}"), key=repr) for name in tables}
    finally:
        connection.close()


# What must not be found in any store, in words and in SQL.
_FAULTS = {
    "a part of a job without its body": """
        select seq from (
          select seq from th_job_state union all select seq from th_job_history
          union all select seq from th_job_result union all select seq from th_waiting
          union all select seq from th_alias
          union all select holder from th_job_key
          union all select next from th_job_key where next is not null
          union all select seq from th_bond union all select parent from th_bond where parent is not null
          union all select seq from th_family union all select seq from th_note
          union all select seq from th_kept
          union all select dep from th_edge union all select dependent from th_edge
        ) where seq not in (select seq from th_job)""",
    "a job that waits without a place in line, or has one and does not wait": """
        select j.seq from th_job j left join th_job_state s on s.seq = j.seq
        where j.seq < (select next_seq from th_meta)
          and (ifnull(s.state, 0) = 0) <> (1 = (select count(*) from th_waiting w where w.seq = j.seq))""",
    "a place in line that is not the job's": """
        select w.seq from th_waiting w join th_job j on j.seq = w.seq
        left join th_job_history h on h.seq = j.seq
        where w.queue <> j.queue
           or w.at <> ifnull(iif(h.seq is null, j.run_at, h.run_at), j.created_at)
           or (w.lane, w.type, w.rank) not in (values (j.lane, j.type, -j.priority), ('', '', 0))""",
    "flags that do not fit": """
        select j.seq from th_job j
        left join th_job_state s on s.seq = j.seq
        left join th_waiting w on w.seq = j.seq
        left join th_job_history h on h.seq = j.seq
        where iif(ifnull(s.state, 0) = 0, w.flags, s.flags) & 15 <>
          (h.seq is not null) | 2 * (j.key is not null) | 4 * (j.idempotency_key is not null)
          | 8 * (j.copy_of is not null)""",
    "ties that the flags do not show": """
        select j.seq from th_job j
        left join th_job_state s on s.seq = j.seq
        left join th_waiting w on w.seq = j.seq
        left join th_bond b on b.seq = j.seq
        left join th_family f on f.seq = j.seq
        where ifnull(w.flags & 384, s.flags & 384) <> ifnull(s.flags & 384, 0)
          or ifnull(s.flags & 384, 0) <> case
               when f.seq is not null or j.seq in (select seq from th_note) then 128
               when b.bonds like '%"deadline"%' then 128
               when b.parent is not null then 256 when b.seq is not null then 128 else 0 end""",
    "a family that is miscounted": """
        select seq from th_family f where open <> (
          select count(*) from th_bond b join th_job_state s on s.seq = b.seq
          where b.parent = f.seq and s.state < 4)""",
    "a deadline of a job that is over": """
        select b.seq from th_bond b join th_job_state s on s.seq = b.seq
        where s.state > 3 and b.deadline is not null""",
    "a job under a claim that does not run, or one that runs without": """
        select s.seq from th_job_state s where (s.state = 3) <> (s.claim is not null)
          or (s.state = 3 and s.seq not in (
            select value from th_claim c, json_each(c.seqs) where c.no = s.claim))""",
    "a claim that miscounts its jobs": """
        select no from th_claim
        where held <> (select count(*) from th_job_state s where s.claim = th_claim.no)""",
    "an ended job without its batch": """
        select s.seq from th_job_state s join th_job j on j.seq = s.seq where s.state > 3 and not exists (
          select 1 from th_finished f, json_each(f.seqs) x
          where x.value = s.seq and f.queue = j.queue and f.state = s.state and f.at = s.since)
          and not exists (
          select 1 from th_kept k
          where k.seq = s.seq and k.queue = j.queue and k.state = s.state and k.at = s.since)""",
    "a child that waits for its root and is not over": """
        select k.seq from th_kept k left join th_job_state s on s.seq = k.seq
        where s.state is not k.state or s.since <> k.at""",
    "a first-try success whose batch is another's": """
        select s.seq from th_job_state s where s.finished is not null and (s.state <> 4 or not exists (
          select 1 from th_finished f where f.no = s.finished and f.token is not null and f.at = s.since))""",
    "a result of a job that is not over": """
        select seq from th_job_result where seq not in (
          select s.seq from th_job_state s left join th_family f on f.seq = s.seq
          where s.state > 3 or (s.state = 2 and f.own = 'completed'))""",
    "a key that is not its job's": """
        select holder from th_job_key k
        where not exists (
            select 1 from th_job j left join th_job_state s on s.seq = j.seq
            where j.seq = k.holder and j.queue = k.queue and j.key = k.key
              and ifnull(s.state, 0) in (0, 3) and (k.next is null or s.state = 3))
          or (k.next is not null and not exists (
            select 1 from th_job j join th_job_state s on s.seq = j.seq
            where j.seq = k.next and j.queue = k.queue and j.key = k.key and s.state = 2))""",
    "a live job without its key": """
        select j.seq from th_job j left join th_job_state s on s.seq = j.seq
        where j.key is not null and ifnull(s.state, 0) < 4
          and j.seq not in (
            select holder from th_job_key
            union all select next from th_job_key where next is not null)""",
    "a miscounted block": """
        with counted (queue, block, state, number) as (
          select queue, block, 'waiting', scheduled + ready from th_count
          union all select queue, block, 'blocked', blocked from th_count
          union all select queue, block, 'running', running from th_count
          union all select queue, block, 'completed', completed from th_count
          union all select queue, block, 'failed', failed from th_count
          union all select queue, block, 'cancelled', cancelled from th_count
        ),
        there (queue, block, state, number) as (
          select j.queue, j.seq >> 10, case s.state when 2 then 'blocked' when 3 then 'running'
              when 4 then 'completed' when 5 then 'failed' when 6 then 'cancelled' else 'waiting' end,
            count(*)
          from th_job j left join th_job_state s on s.seq = j.seq
          where j.copy_of is null and j.seq < (select next_seq from th_meta) group by 1, 2, 3
        )
        select * from (select * from counted where number <> 0 except select * from there)
        union all
        select * from (select * from there except select * from counted)""",
    "a job beyond the last seq that did not come alone": """
        select j.seq from th_job j left join th_job_state s on s.seq = j.seq
        left join th_waiting w on w.seq = j.seq
        where j.seq >= (select next_seq from th_meta)
          and (s.seq is not null or w.seq is not null or j.run_at is not null or j.key is not null
               or j.idempotency_key is not null or j.copy_of is not null)""",
}


def is_sound(path: Path) -> bool:
    """Whether SQLite finds no fault with the file, and no table disagrees with another."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        for fault, sql in _FAULTS.items():
            assert connection.execute(sql).fetchall() == [], fault
    finally:
        connection.close()
    return True

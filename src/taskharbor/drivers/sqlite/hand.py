"""One claim on one queue: what it picks, the leases it makes, the records it hands out."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate, pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.sqlite.orphans import drop_from_line
from taskharbor.drivers.sqlite.records import Records, json_text
from taskharbor.drivers.sqlite.rows import Flags, fence_before, instant_or_none, with_traits
from taskharbor.drivers.sqlite.runs import Run, runs_of
from taskharbor.drivers.sqlite.step import Kept, Step, blocks_of
from taskharbor.errors import DriverMisbehaved
from taskharbor.model.clock import instant, micros
from taskharbor.model.job import JobRecord
from taskharbor.model.state import JobState

# seq, id, type, bytes of payload, flags, rank, eligible_at, created_at if that is a run_at, traits
Picked = tuple[int, str, str, int, int, int, int, int | None, str | None]
_picked_decoder = msgspec.json.Decoder(list[Picked])
_sizes_decoder = msgspec.json.Decoder(list[int])


class Hand:
    """One claim on one queue: all it takes shares one grant."""

    def __init__(self, step: Step, claim: Claim, queue: str, token: str) -> None:
        self._step = step
        self._claim = claim
        self._queue = queue
        self._token = token
        self._expires_at = step.now + claim.lease_for
        self._types = None if claim.types is None else json_text(claim.types)

    def take(self, most: int) -> list[JobRecord]:
        jobs = self._take_run(self._claim.lanes[0], most)
        return self._take_any(most) if jobs is None else jobs

    def _take_run(self, lane: str, most: int) -> list[JobRecord] | None:
        """All from the run that heads the line: plain jobs that came together. None: it is not so simple."""
        first, last, type_, rank, eligible_at, found, traits, are_alike, ids, sizes, payloads = (
            self._step.one("reserve_run", queue=self._queue, lane=lane, limit=most, types=self._types)
        )
        if found < most or not are_alike:
            return None
        seqs = range(first, first + most)
        self._lease_plain([(first, seqs[-1])], most)
        self._count(seqs)
        place = {"queue": self._queue, "lane": lane, "rank": rank, "eligible_at": eligible_at, "seq": first}
        if last == seqs[-1]:
            self._step.run("reserve_used_up", **place)
        else:
            self._step.run("reserve_shorten", next=first + most, **place)
        model = replace(self._model(lane, -rank, traits, None), type=type_, created_at=instant(eligible_at))
        return self._copies(model, seqs, ids, sizes, payloads)

    def _lease_plain(self, runs: list[Run], count: int) -> None:
        text = json_text(runs)
        self._step.run("reserve_lease", grant_no=self._grant(text, count), runs=text)

    def _copies(
        self, model: JobRecord, seqs: range, ids: str, sizes: str, payloads: bytes
    ) -> list[JobRecord]:
        ends = list(accumulate(_sizes_decoder.decode(f"[{sizes}]")))
        parts = [payloads[start:end] for start, end in pairwise([0, *ends])]
        names = ids.split(",")
        self._seq_of().update(zip(names, seqs, strict=True))
        headers = model.headers
        return [
            replace(model, id=name, seq=seq, payload=part, headers=headers.copy() if headers else {})
            for name, seq, part in zip(names, seqs, parts, strict=True)
        ]

    def _take_any(self, most: int) -> list[JobRecord]:
        picks: list[tuple[str, list[Picked], bytes]] = []
        looked_up: dict[str, str | None] = {}  # per lane: the rows of the line that were, if any
        for lane in self._claim.lanes:
            rows, payloads, looked_up[lane] = self._pick(lane, most)
            if rows:
                picks.append((lane, rows, payloads))
                most -= len(rows)
            if most <= 0:
                break
        if not picks:
            return []
        self._lease([row for _, rows, _ in picks for row in rows])
        for lane, rows, _ in picks:
            self._unready(lane, rows[-1], looked_up[lane])
        return [job for lane, rows, payloads in picks for job in self._records(lane, rows, payloads)]

    def _of_types(self, lane: str, limit: int) -> str | None:
        """The rows of the line that hold the next jobs of the claimed types, looked up type by type. None: no
        other type stands at the head of the line, so it can be walked along.
        """
        types = self._claim.types
        line: dict[str, Any] = {"queue": self._queue, "lane": lane}
        if types is None:
            return None
        (is_strange,) = self._step.one("reserve_strange", **line, limit=limit + 16, types=self._types)
        if not is_strange:
            return None
        line |= {"limit": limit, "now": self._step.us, "worker": self._claim.worker_id}
        firsts = [row for name in types for row in self._step.run("reserve_of_type", **line, type=name)]
        rows, jobs = [], 0
        for rank, eligible_at, seq, last in sorted(firsts):
            rows.append((rank, eligible_at, seq))
            jobs += last - seq + 1
            if jobs >= limit:
                break
        return json_text(rows)

    def _pick(self, lane: str, limit: int) -> tuple[list[Picked], bytes, str | None]:
        """What comes next; and, where other types stand in the way, the rows that it stands in."""
        conditions = self._conditions(lane)
        while True:
            looked_up = self._of_types(lane, limit)
            if looked_up is None:
                row = self._step.one("reserve_pick", limit=limit, **conditions)
            else:
                place = {"queue": self._queue, "lane": lane}
                row = self._step.one("reserve_pick_rows", **place, limit=limit, rows=looked_up)
            text, payloads, is_any_lost, named = row
            if not is_any_lost:
                rows = _picked_decoder.decode(text)
                # Those that were looked at and not picked: only a full pick leaves some.
                if len(rows) == limit or len(rows) == (named or 0):
                    return rows, payloads or b"", looked_up
            if not drop_from_line(self._step, self._queue, lane):
                raise DriverMisbehaved(f"the line of queue {self._queue!r} and its jobs do not agree")

    def _conditions(self, lane: str) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "lane": lane,
            "now": self._step.us,
            "worker": self._claim.worker_id,
            "types": self._types,
        }

    def _lease(self, rows: list[Picked]) -> None:
        """One grant, and a lease for each."""
        plain = [row[0] for row in rows if not row[4]]
        if len(plain) == len(rows):
            self._lease_plain(runs_of(plain), len(plain))
            self._count(plain)
            return
        step = self._step
        grant_no = self._grant(json_text(runs_of([row[0] for row in rows])), len(rows))
        if plain:
            step.run("reserve_lease", grant_no=grant_no, runs=json_text(runs_of(plain)))
        for row in rows:
            if row[4]:
                step.run("reserve_lease_flagged", grant_no=grant_no, seq=row[0], flags=row[4])
        self._count([row[0] for row in rows if not row[4] & Flags.COPY])

    def _grant(self, runs: str, count: int) -> int | None:
        return self._step.run(
            "reserve_grant",
            queue=self._queue,
            token=self._token,
            worker=self._claim.worker_id,
            now=self._step.us,
            expires_at=micros(self._expires_at),
            held=count,
            runs=runs,
        ).lastrowid

    def _count(self, seqs: Collection[int]) -> None:
        """Ready no more, but running. Copies are not counted."""
        for block, count in blocks_of(seqs).items() if seqs else ():
            self._step.count_block(self._queue, block, JobState.READY, -count)
            self._step.count_block(self._queue, block, JobState.RUNNING, +count)

    def _unready(self, lane: str, last: Picked, looked_up: str | None) -> None:
        """Out of the line with what was picked, up to its last job."""
        bound = {"rank": last[5], "eligible_at": last[6], "seq": last[0]}
        self._step.run("reserve_rest", queue=self._queue, lane=lane, **bound)
        if looked_up is None:
            self._step.run("reserve_unready", **bound, **self._conditions(lane))
        else:
            self._step.run("reserve_unready_rows", queue=self._queue, lane=lane, rows=looked_up)

    # ------------------------------------------------------------------ records

    def _records(self, lane: str, rows: list[Picked], payloads: bytes) -> list[JobRecord]:
        """The handed-out jobs in the order of the pick: plain ones from the pick, the others read whole."""
        looked_at = [row[0] for row in rows if row[4]]
        closer = self._looked_at(looked_at) if looked_at else {}
        seq_of = self._seq_of()
        jobs: list[JobRecord] = []
        add = jobs.append
        # Neighbours mostly share all that is asked for here, so the last model fits the next job.
        model = self._model(lane, 0, None, None)
        model_rank, model_traits, model_run_at = 0, None, None
        end, created_us, created_at = 0, -1, self._step.now
        for seq, job_id, type_, size, flags, rank, eligible_at, before_run_at, traits in rows:
            start, end = end, end + size
            seq_of[job_id] = seq
            if flags:
                add(closer[seq])
                continue
            if before_run_at is None:
                run_at, created = None, eligible_at
            else:
                run_at, created = eligible_at, before_run_at
            if created != created_us:
                created_us, created_at = created, instant(created)
            if rank != model_rank or traits != model_traits or run_at != model_run_at:
                model = self._model(lane, -rank, traits, run_at)
                model_rank, model_traits, model_run_at = rank, traits, run_at
            headers = model.headers
            add(
                replace(
                    model,
                    id=job_id,
                    seq=seq,
                    type=type_,
                    payload=payloads[start:end],
                    created_at=created_at,
                    headers=headers.copy() if headers else {},
                )
            )
        return jobs

    def _seq_of(self) -> dict[str, int]:
        """Where to note the seqs of jobs that are handed out here."""
        seq_of = self._step.kept.seq_of
        if len(seq_of) > Kept.MOST_SEQS:
            seq_of.clear()
        return seq_of

    def _model(self, lane: str, priority: int, traits: str | None, run_at: int | None) -> JobRecord:
        """A job on its first claim, but for what tells it from its like."""
        now = self._step.now
        model = JobRecord(
            id="",
            seq=0,
            type="",
            queue=self._queue,
            state=JobState.RUNNING,
            payload=b"",
            created_at=now,
            updated_at=now,
            version=2,
            priority=priority,
            requires=lane,
            run_at=instant_or_none(run_at),
            starts=1,
            token=self._token,
            fence=self._step.us,
            lease_expires_at=self._expires_at,
            worker_id=self._claim.worker_id,
            started_at=now,
        )
        return with_traits(model, traits)

    def _looked_at(self, seqs: list[int]) -> dict[int, JobRecord]:
        step = self._step
        jobs: dict[int, JobRecord] = {}
        records = Records(step)
        for row in step.all("get_seqs", seqs=json_text(seqs)):
            job = records.record(row)
            fence = fence_before(row) + 1
            if fence > step.us:
                step.run("reserve_fence", seq=job.seq, fence=fence)
                job = replace(job, fence=fence)
            if job.key is not None:
                step.run("reserve_key", queue=job.queue, key=job.key, seq=job.seq)
            jobs[job.seq] = job
        return jobs

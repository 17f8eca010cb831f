"""Jobs out: reclaim, promote, ask the gates, then one pick per queue and lane. One step."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.family_ends import without_ended
from taskharbor.drivers.messages import Claim, Claimed, FamilyEnd, Reclaimed, given_up_in
from taskharbor.drivers.sqlite import gates
from taskharbor.drivers.sqlite.families import TIES, FamilyRecords, bonds_of_children, bound
from taskharbor.drivers.sqlite.family_verbs import sweep
from taskharbor.drivers.sqlite.records import Records, drop_orphan
from taskharbor.drivers.sqlite.rows import Flags, json_array, past_of, with_options
from taskharbor.drivers.sqlite.step import HandleCache, Step
from taskharbor.drivers.sqlite.upkeep import promote, reclaim
from taskharbor.errors import DriverMisbehaved
from taskharbor.model.clock import instant, micros
from taskharbor.model.job import JobRecord
from taskharbor.model.speculation import may_take
from taskharbor.model.state import JobState
from taskharbor.model.transitions import claimed

RECLAIMED_PER_CLAIM = 100
PROMOTED_PER_CLAIM = 10_000
"""Each due job moves once, so a claim pays for more than its own only after a long silence."""

FEW_QUEUES = 4  # a look at each costs less than to ask which of them have something
MOST_WALKED = 200  # queues in which there is something

_LIGHT_PAST = (Flags.PAST, Flags.PAST | Flags.TIMED)  # the flags of jobs with a past and nothing else
_WHOLE = Flags.PAST | Flags.COPY  # the records of others with these flags are read whole
_ints = msgspec.json.Decoder(list[int])


def reserve(step: Step, claim: Claim, token: str) -> Claimed:
    """Up to `claim.limit` jobs, each under a fresh lease, and the expired ones that were given up."""
    looks = {queue: step.look(queue) for queue in _queues_to_look_at(step, claim.queues)}
    is_any_expired = any(look.is_expired for look in looks.values())
    reclaimed: list[Reclaimed] = []
    ended: tuple[FamilyEnd, ...] = ()
    if is_any_expired:
        reclaimed, ended = without_ended(reclaim(step, claim.queues, RECLAIMED_PER_CLAIM))
    if looks[claim.queues[0]].is_owed:
        ended += sweep(step).ended
    taken: list[JobRecord] = []
    for queue, look in looks.items():
        if look.is_due:
            promote(step, queue, PROMOTED_PER_CLAIM)
        has_gates = bool(step.rules) or claim.rate is not None
        most = claim.limit - len(taken)
        if has_gates:
            most = min(gates.room(step, queue, claim), most)
        if most > 0:
            jobs = QueueClaim(step, claim, queue, token).take(most, has_copies=look.has_copies)
            if has_gates:
                gates.spend(step, queue, claim, len(jobs))
            taken += jobs
        if queue in step.notices.queues and not step.fetch_one("reserve_rest", queue=queue)[0]:
            step.notices.queues.discard(queue)  # what this step made ready, it has taken itself
    return Claimed(taken, given_up_in(reclaimed), ended)


def _queues_to_look_at(step: Step, queues: tuple[str, ...]) -> tuple[str, ...]:
    """Of many queues those in which there is something, and the first, in their order.

    What a claim costs must not depend on the others.
    """
    if len(queues) <= FEW_QUEUES:
        return queues
    most = min(len(queues), MOST_WALKED)
    rows = step.fetch_all("reserve_queues", most=most, now=step.us)
    if rows.count((None,)) < 2:  # too many other queues have some
        rows = step.fetch_all("reserve_queues_of", queues=json_array(queues), now=step.us)
    found = {name for (name,) in rows}
    return tuple(queue for queue in queues if queue in found or queue == queues[0])


class Picked(NamedTuple):
    """The next jobs of one lane, column by column."""

    lane: str
    seqs: list[int]
    ids: list[str]
    payloads: list[bytes]
    flags: list[int]
    ranks: list[str]
    ats: list[str]
    types: list[str]
    options: list[str]
    wanted: str  # the types that were asked for


class QueueClaim:
    """One claim on one queue: all it takes shares one row of `claim`."""

    def __init__(self, step: Step, claim: Claim, queue: str, token: str) -> None:
        self._step = step
        self._claim = claim
        self._queue = queue
        self._token = token
        self._expires_at = step.now + claim.lease_for
        self._copies = "[]"

    def take(self, most: int, *, has_copies: bool) -> list[JobRecord]:
        if has_copies:
            self._copies = self._possible_copies()
        picks: list[Picked] = []
        for lane in self._claim.lanes:
            picked = self._pick(lane, most)
            if picked is not None:
                picks.append(picked)
                most -= len(picked.seqs)
            if most <= 0:
                break
        if not picks:
            return []
        self._lease(picks)
        for picked in picks:
            self._leave_line(picked)
        return [job for picked in picks for job in self._records(picked)]

    # ------------------------------------------------------------------ picking

    def _pick(self, lane: str, limit: int) -> Picked | None:
        """The next jobs of a lane. Entries that have lost their job are dropped on the way."""
        step = self._step
        types = self._types(lane)
        if not types:
            return None
        line = {"queue": self._queue, "lane": lane, "now": step.us, "copies": self._copies}
        names = {f"type_{number}": name for number, name in enumerate(types)}
        while True:
            found = step.fetch_pick(len(types), limit=limit, **line, **names)
            seqs, ids, sizes, payloads, flags, ranks, ats, types_of, options, is_any_lost = found
            if seqs is None:
                return None
            if not is_any_lost:
                ends = list(accumulate(_ints.decode(f"[{sizes}]")))
                return Picked(
                    lane,
                    _ints.decode(f"[{seqs}]"),
                    ids.split(","),
                    [payloads[start:end] for start, end in pairwise([0, *ends])],
                    _ints.decode(f"[{flags}]") if flags.strip("0,") else [],
                    ranks.split(","),
                    ats.split(","),
                    types_of.split(","),
                    options.split("\n"),
                    json_array(types),
                )
            if not self._drop_orphans(lane):
                raise DriverMisbehaved(f"the line of queue {self._queue!r} and its jobs do not agree")

    def _types(self, lane: str) -> list[str]:
        """The types that wait in a lane and are claimed."""
        step, line = self._step, {"queue": self._queue, "lane": lane}
        if self._claim.types is None:
            rows = step.execute("reserve_types", **line)
        else:
            rows = step.execute("reserve_types_of", types=json_array(self._claim.types), **line)
        return [name for (name,) in rows]

    def _possible_copies(self) -> str:
        """The waiting copies that this worker may have."""
        step = self._step
        records = Records(step)
        seqs = [seq for (seq,) in step.fetch_all("reserve_copies", queue=self._queue)]
        return json_array(
            [
                copy.seq
                for copy in records.by_seqs(seqs)
                if copy.speculates_on is not None
                and may_take(copy, records.get(copy.speculates_on), self._claim.worker_id, step.now)
            ]
        )

    def _drop_orphans(self, lane: str) -> bool:
        """Take every entry without a body out of a lane; was there one?"""
        step = self._step
        rows = step.fetch_all("reserve_orphans", queue=self._queue, lane=lane)
        for type_, rank, at, seq, flags in rows:
            place = {"type": type_, "rank": rank, "at": at, "seq": seq}
            step.execute("put_leave", queue=self._queue, lane=lane, **place)
            drop_orphan(step, self._queue, seq, JobState.READY, flags)
        return bool(rows)

    # ------------------------------------------------------------------ leasing

    def _lease(self, picks: list[Picked]) -> None:
        """One row of `claim`, and a state for each job."""
        step = self._step
        seqs = [seq for picked in picks for seq in picked.seqs]
        text = json_array(seqs)
        no = step.execute(
            "reserve_claim",
            queue=self._queue,
            token=self._token,
            worker=self._claim.worker_id,
            now=step.us,
            expires_at=micros(self._expires_at),
            held=len(seqs),
            seqs=text,
        ).lastrowid
        if not any(picked.flags for picked in picks):
            step.execute("reserve_state", no=no, flags=0, now=step.us, seqs=text)
            self._count(seqs)
            return
        by_flags: dict[int, list[int]] = {}
        for picked in picks:
            for seq, flags in zip(picked.seqs, picked.flags or [0] * len(picked.seqs), strict=True):
                by_flags.setdefault(flags & ~Flags.TIMED, []).append(seq)
        for flags, mine in by_flags.items():
            step.execute("reserve_state", no=no, flags=flags, now=step.us, seqs=json_array(mine))
            if flags:
                step.cache.flags_of.update(dict.fromkeys(mine, flags))
            if not flags & Flags.COPY:  # copies are not counted
                self._count(mine)

    def _count(self, seqs: list[int]) -> None:
        self._step.count_seqs(self._queue, seqs, JobState.READY, -1)
        self._step.count_seqs(self._queue, seqs, JobState.RUNNING)

    def _leave_line(self, picked: Picked) -> None:
        self._step.execute(
            "reserve_leave",
            queue=self._queue,
            lane=picked.lane,
            types=picked.wanted,
            rank=int(picked.ranks[-1]),
            at=int(picked.ats[-1]),
            seq=picked.seqs[-1],
            now=self._step.us,
            copies=self._copies,
        )

    # ------------------------------------------------------------------ records

    def _records(self, picked: Picked) -> list[JobRecord]:
        """The claimed jobs in the order of the pick; those with a history are read whole."""
        cache = self._step.cache
        if len(cache.seq_of) > HandleCache.MOST_SEQS:
            cache.forget_jobs()
        cache.seq_of.update(zip(picked.ids, picked.seqs, strict=True))
        whole, more = self._details(picked) if picked.flags else ({}, {})
        jobs: list[JobRecord] = []
        add = jobs.append
        # Neighbours mostly share all that is asked for here, so the last model fits the next job.
        model = self._model(picked.lane)
        rank, options = "0", ""
        last_created, created_at = "", self._step.now
        flags_of = picked.flags or [0] * len(picked.seqs)
        columns = zip(*picked[1:4], flags_of, *picked[5:9], strict=True)
        for seq, job_id, payload, flags, its_rank, at, type_, its_options in columns:
            run_at = key = idempotency_key = None
            created = at
            if flags:
                if seq in whole:
                    add(whole[seq])
                    continue
                if flags & ~TIES and flags not in _LIGHT_PAST:
                    key, idempotency_key, created = more[seq]
                if flags & Flags.TIMED:
                    run_at = instant(int(at))
            if its_rank != rank or its_options != options:
                rank, options = its_rank, its_options
                model = with_options(replace(self._model(picked.lane), priority=-int(rank)), options)
            if created != last_created:
                last_created, created_at = created, instant(int(created))
            headers = model.headers
            add(
                replace(
                    model,
                    id=job_id,
                    seq=seq,
                    type=type_,
                    payload=payload,
                    created_at=created_at,
                    key=key,
                    idempotency_key=idempotency_key,
                    headers=headers.copy() if headers else {},
                    run_at=run_at,
                )
            )
        if picked.flags:
            self._add_bonds(picked, jobs)
            self._add_pasts(picked, jobs)
        return jobs

    def _add_bonds(self, picked: Picked, jobs: list[JobRecord]) -> None:
        """Jobs that were not read whole get what ties them to others."""
        part = [flags & TIES if not flags & _WHOLE else 0 for flags in picked.flags]
        children = [picked.seqs[place] for place, ties in enumerate(part) if ties == Flags.CHILD]
        bonds = bonds_of_children(self._step, children) if children else {}
        tied = [jobs[place] for place, ties in enumerate(part) if ties == Flags.BOUND]
        whole = bound(self._step, tied) if tied else {}
        for place, ties in enumerate(part):
            job = jobs[place]
            if ties == Flags.CHILD:
                own, root = bonds[job.seq]
                jobs[place] = replace(job, bonds=own, root=root)
            elif ties:
                jobs[place] = whole[job.seq]

    def _add_pasts(self, picked: Picked, jobs: list[JobRecord]) -> None:
        """Jobs that ran before, and were not read whole, get what they have behind them."""
        places = {
            picked.seqs[place]: place for place, flags in enumerate(picked.flags) if flags in _LIGHT_PAST
        }
        rows = self._step.execute("reserve_past", seqs=json_array(places)) if places else ()
        for seq, created_at, version, fence, *past in rows:
            place = places[seq]
            own = {"created_at": instant(created_at), "version": version, "fence": fence}
            jobs[place] = replace(jobs[place], **own, **past_of(past))

    def _details(self, picked: Picked) -> tuple[dict[int, JobRecord], dict[int, tuple[Any, ...]]]:
        """Records that are read whole, and what the pick does not say of the others; both by seq."""
        pairs = [
            (seq, flags)
            for seq, flags in zip(picked.seqs, picked.flags, strict=True)
            if flags not in _LIGHT_PAST
        ]
        whole = self._whole([(seq, flags) for seq, flags in pairs if flags & _WHOLE])
        rest = [seq for seq, flags in pairs if flags & ~TIES and not flags & _WHOLE]
        rows = self._step.execute("reserve_more", seqs=json_array(rest)) if rest else ()
        return whole, {seq: (key, idempotency_key, at) for seq, key, idempotency_key, at in rows}

    def _whole(self, pairs: list[tuple[int, int]]) -> dict[int, JobRecord]:
        """Records that this step has made ready itself are claimed as they are; the others are read."""
        step, known = self._step, self._step.made_ready
        whole = {
            seq: claimed(known[seq], self._token, self._claim.worker_id, self._expires_at, step.now)
            for seq, _ in pairs
            if seq in known
        }
        if missing := [seq for seq, _ in pairs if seq not in whole]:
            records = FamilyRecords(step, is_tied=any(flags & Flags.BOUND for _, flags in pairs))
            whole |= {job.seq: job for job in records.by_seqs(missing)}
        return whole

    def _model(self, lane: str) -> JobRecord:
        """A job on its first claim, but for what is its own."""
        now = self._step.now
        return JobRecord(
            id="",
            seq=0,
            type="",
            queue=self._queue,
            state=JobState.RUNNING,
            payload=b"",
            created_at=now,
            updated_at=now,
            version=2,
            requires=lane,
            starts=1,
            token=self._token,
            fence=self._step.us,
            lease_expires_at=self._expires_at,
            worker_id=self._claim.worker_id,
            started_at=now,
        )

"""What can keep a job from being enqueued or claimed: pause, rates, max_running.

Callers ask only if there are rules (`step.rules`) or the claim has a rate: unset gates cost nothing.

A rate is an exact sliding window: a log of (instant, count) with a running total beside it, so that
asking costs what has left the window since the last time, and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec

from taskharbor.drivers.messages import Claim
from taskharbor.drivers.sqlite.step import Step, settings_decoder
from taskharbor.errors import RateLimited
from taskharbor.model.limits import RateLimit, free_at
from taskharbor.model.queue import EVERY_QUEUE, QueueRules, QueueSettings, rules_of


def configure(step: Step, settings: QueueSettings) -> QueueRules:
    stored = dict(step.fetch_all("settings_all")).get(settings.queue)
    merged = settings.on_top_of(None if stored is None else settings_decoder.decode(stored))
    step.execute("settings_put", queue=settings.queue, settings=msgspec.json.encode(merged).decode())
    step.execute("settings_changed")
    step.cache.rules_version = None
    held = rules_of(merged)
    for what, rate in (("enqueue", held.enqueue_rate), ("execute", held.execute_rate)):
        if rate is None:
            forget_rate(step, f"{what}/{settings.queue}")
    return held


# ------------------------------------------------------------------ in


def limits_enqueues(step: Step) -> bool:
    return bool(step.rules) and step.cache.limits_enqueues


def admit(step: Step, budgets: Sequence[tuple[str, RateLimit, int]]) -> RateLimited | None:
    """Spend these enqueue budgets (lifecycle.admit), all or none.

    A refusal is an answer, not a failure of the step: what was learned of the clock is stored.
    """
    for queue, rate, count in budgets:
        if wait := _wait_us(step, f"enqueue/{queue}", rate, count):
            return RateLimited(queue, timedelta(microseconds=wait))
    for queue, rate, count in budgets:
        _spend(step, f"enqueue/{queue}", rate, count)
    return None


# ------------------------------------------------------------------ out


def room(step: Step, queue: str, claim: Claim) -> int:
    """How many jobs of this queue may be handed out now; at most `claim.limit`."""
    most = claim.limit
    for name in (queue, EVERY_QUEUE):
        held = step.rules_of(name)
        if held.paused:
            return 0
        if held.max_running is not None:
            most = min(most, held.max_running - _running(step, name))
    for name, rate in _execute_budgets(step, queue, claim):
        most = min(most, rate.count - _spent(step, name, rate))
    return max(most, 0)


def spend(step: Step, queue: str, claim: Claim, count: int) -> None:
    if count:
        for name, rate in _execute_budgets(step, queue, claim):
            _spend(step, name, rate, count)


def throttled_until_us(step: Step, queue: str) -> int | None:
    """When the spent execute rate of this level has room again; None when it has now."""
    rate = step.rules_of(queue).execute_rate
    return (
        None
        if rate is None
        else free_at(rate, step.execute("rate_entries", name=f"execute/{queue}"), step.us)
    )


def _execute_budgets(step: Step, queue: str, claim: Claim) -> Iterator[tuple[str, RateLimit]]:
    for name in (queue, EVERY_QUEUE):
        if (rate := step.rules_of(name).execute_rate) is not None:
            yield f"execute/{name}", rate
    if claim.rate is not None:
        yield f"worker/{claim.worker_id}", claim.rate


def _running(step: Step, queue: str) -> int:
    """Unexpired leases: one that ran out stops counting at that instant, reclaimed or not."""
    if queue == EVERY_QUEUE:
        (count,) = step.fetch_one("running_anywhere", now=step.us)
    else:
        (count,) = step.fetch_one("running", queue=queue, now=step.us)
    return int(count)


# ------------------------------------------------------------------ budgets


def _spent(step: Step, name: str, rate: RateLimit) -> int:
    """What of this budget was spent within its window."""
    _behind_us(step, name, rate)
    until = step.us - rate.per_us
    (gone,) = step.fetch_one("rate_sum_until", name=name, until=until)
    if gone:
        step.execute("rate_forget_until", name=name, until=until)
        step.execute("rate_add", name=name, difference=-gone, per=rate.per_us)
    row = step.fetch_one("rate_total", name=name)
    return row[0] if row else 0


def _behind_us(step: Step, name: str, rate: RateLimit) -> int | None:
    """A clock that goes back meets entries of its future. They count, so that nothing is spent twice, for one
    window after the clock was first seen behind them; since when that is.
    """
    mark = f"behind/{name}"
    (newest,) = step.fetch_one("rate_newest", name=name)
    (since,) = step.fetch_one("rate_newest", name=mark)
    if newest is None or newest <= step.us:
        if since is not None:
            step.execute("rate_forget_entries", name=mark)
        return None
    if since is None or since > step.us:
        step.execute("rate_forget_entries", name=mark)
        step.execute("rate_spend", name=mark, at=step.us, count=0)
        return step.us
    if step.us < since + rate.per_us:
        return int(since)
    (future,) = step.fetch_one("rate_sum_after", name=name, now=step.us)
    step.execute("rate_forget_after", name=name, now=step.us)
    step.execute("rate_add", name=name, difference=-future, per=rate.per_us)
    step.execute("rate_forget_entries", name=mark)
    return None


def _wait_us(step: Step, name: str, rate: RateLimit, wanted: int) -> int:
    """How long until `wanted` fit, in µs; 0 when they fit now."""
    missing = wanted + _spent(step, name, rate) - rate.count
    if missing <= 0:
        return 0
    behind = _behind_us(step, name, rate)
    entries = [
        (at if behind is None or at < behind + rate.per_us else behind, count)
        for at, count in step.execute("rate_entries", name=name)
    ]
    for at, count in sorted(entries):
        missing -= count
        if missing <= 0:
            return max(int(at) + rate.per_us - step.us, 0)
    return 0


def _spend(step: Step, name: str, rate: RateLimit, count: int) -> None:
    step.execute("rate_spend", name=name, at=step.us, count=count)
    step.execute("rate_add", name=name, difference=count, per=rate.per_us)


def forget_rate(step: Step, name: str) -> None:
    step.execute("rate_forget", name=name)
    step.execute("rate_forget_entries", name=name)

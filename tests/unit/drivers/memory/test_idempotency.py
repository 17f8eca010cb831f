"""Which job answers for a key, and for how long after its end."""

from datetime import UTC, datetime, timedelta

from taskharbor.drivers.memory.records import Idempotency
from taskharbor.model.job import NewJob
from taskharbor.model.queue import IDEMPOTENCY_WINDOW

NOW = datetime(2031, 4, 5, tzinfo=UTC)
US = timedelta(microseconds=1)


def remembered(*keys: bytes) -> Idempotency:
    """One job for each key, all of them ended now."""
    kept = Idempotency()
    for key in keys:
        kept.remember(NewJob(id="", type="t", queue="q", idempotency_key=key), key.decode())
        kept.end(key.decode(), NOW)
    return kept


def test_a_key_is_remembered_until_the_end_of_its_window_and_not_at_it():
    kept = remembered(b"a")

    assert kept.job_of("q", b"a", NOW + IDEMPOTENCY_WINDOW - US) == "a"
    assert kept.job_of("q", b"a", NOW + IDEMPOTENCY_WINDOW) is None


def test_pruning_forgets_lapsed_keys_up_to_its_limit_and_counts_them():
    kept, end = remembered(b"a", b"b", b"c"), NOW + IDEMPOTENCY_WINDOW

    assert kept.prune(10, end - US) == 0
    assert (kept.prune(2, end), kept.prune(2, end), kept.prune(2, end)) == (2, 1, 0)


def test_a_job_that_lives_again_keeps_its_key_while_it_is_remembered_and_not_afterwards():
    end = NOW + IDEMPOTENCY_WINDOW
    soon, late = remembered(b"a"), remembered(b"a")

    soon.revive("a", end - US)
    late.revive("a", end)

    assert soon.job_of("q", b"a", end) == "a"
    assert late.job_of("q", b"a", NOW) is None


def test_forgetting_one_key_of_a_job_leaves_the_others_with_it():
    kept, end = Idempotency(), NOW + IDEMPOTENCY_WINDOW
    for key in (b"a", b"b"):
        kept.remember(NewJob(id="", type="t", queue="q", idempotency_key=key), "job")
    kept.end("job", NOW)
    assert kept.prune(1, end) == 1

    kept.end("job", end)  # it lived again and has another end

    answers = {kept.job_of("q", key, end + IDEMPOTENCY_WINDOW - US) for key in (b"a", b"b")}
    assert answers == {None, "job"}

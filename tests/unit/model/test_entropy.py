"""Ids, tokens and jitter: repeatable from a seed, unlike each other without one."""

import uuid
from datetime import UTC, datetime, timedelta

from taskharbor.model.entropy import Entropy, derived_id

NOW = datetime(2031, 4, 5, 6, 7, 8, 9000, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def drawn(entropy):
    return [entropy.job_id(NOW), entropy.token(), entropy.between(0.0, 1.0), entropy.bytes(5)]


def test_a_seed_gives_the_same_series_again():
    assert [drawn(Entropy(5)) for _ in range(3)] == [drawn(Entropy(5))] * 3
    assert drawn(Entropy(5)) != drawn(Entropy(6))


def test_without_a_seed_nothing_repeats():
    assert len({Entropy().token() for _ in range(100)}) == 100


def test_parts_draw_independently_of_each_other():
    def second_part(first_draws):
        root = Entropy(1)
        first, second = root.split("first"), root.split("second")
        for _ in range(first_draws):
            first.token()
        return second.token()

    assert second_part(0) == second_part(50)
    assert Entropy(1).split("a").token() != Entropy(1).split("b").token()
    assert Entropy(1).split("a").token() == Entropy(1).split("a").token()
    assert Entropy().split("a").token() != Entropy().split("a").token()


def test_a_job_id_is_a_uuid_of_version_7():
    made = uuid.UUID(Entropy(1).job_id(NOW))

    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == int(NOW.timestamp() * 1000)


def test_job_ids_sort_by_the_millisecond_they_were_made_in():
    entropy = Entropy(3)
    made = [entropy.job_id(NOW + n * MS) for n in range(200)]

    assert made == sorted(made)


def test_job_ids_of_one_millisecond_sort_by_the_microsecond():
    entropy = Entropy(3)
    made = [entropy.job_id(NOW + timedelta(microseconds=n)) for n in range(1000)]

    assert made == sorted(made)
    assert len({uuid.UUID(job_id).int >> 80 for job_id in made}) == 1


def test_ids_of_one_instant_differ():
    entropy = Entropy(3)

    assert len({entropy.job_id(NOW) for _ in range(10_000)}) == 10_000


def test_a_token_is_128_bits_of_hex():
    token = Entropy(1).token()

    assert len(token) == 32
    assert set(token) <= set("0123456789abcdef")


def test_a_derived_id_is_the_same_on_every_try_and_unlike_any_other():
    parent, other = Entropy(1).job_id(NOW), Entropy(2).job_id(NOW)

    def made(parent=parent, fence=7, purpose="failed"):
        return derived_id(parent, fence, purpose, NOW)

    assert made() == made()
    assert len({made(), made(fence=8), made(purpose="copy"), made(parent=other)}) == 4
    assert uuid.UUID(made()).version == 7


def test_jitter_stays_in_its_range():
    entropy = Entropy(9)

    assert all(0.8 <= entropy.between(0.8, 1.2) <= 1.2 for _ in range(1000))


def test_many_ids_of_one_instant_are_unique_in_order_and_like_single_ones() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    ids = Entropy().job_ids(at, 1000)

    assert len(set(ids)) == 1000
    assert ids == sorted(ids)
    assert {one[:18] for one in ids} == {Entropy().job_id(at)[:18]}
    for one in ids:
        parsed = uuid.UUID(one)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, one)
    assert {one[19] for one in ids} == set("89ab")
    assert Entropy(7).job_ids(at, 3) == Entropy(7).job_ids(at, 3)
    assert Entropy().job_ids(at, 0) == []

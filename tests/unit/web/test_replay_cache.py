"""Calls that come again."""

import asyncio

import pytest

from taskharbor.drivers.error_codec import error_of
from taskharbor.errors import DriverUnavailable
from taskharbor.web import replay_cache
from taskharbor.web.problems import KINDS, Problem
from taskharbor.web.replay_cache import CachedReply, ReplayCache

KEY = ("token", "settle", b"call-1", 0)


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


class Work:
    """Counts how often it is done."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self, kept: CachedReply) -> bytes:
        self.done += 1
        return b"answer %d" % self.done


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def memory(watch: Watch) -> ReplayCache:
    return ReplayCache("boot", watch)  # type: ignore[arg-type]


async def test_a_known_call_is_answered_as_before_and_not_done_again(memory: ReplayCache) -> None:
    work = Work()
    await memory.once(KEY, work)

    assert await memory.again(KEY, b"boot 0.1", False, work) == b"answer 1"
    assert work.done == 1


async def test_a_call_that_is_under_way_is_waited_for(memory: ReplayCache) -> None:
    may_end = asyncio.Event()

    async def slow(kept: CachedReply) -> bytes:
        await may_end.wait()
        return b"slow"

    first = asyncio.ensure_future(memory.once(KEY, slow))
    await asyncio.wait([first], timeout=0)
    second = asyncio.ensure_future(memory.again(KEY, b"boot 0.1", False, Work()))
    await asyncio.wait([second], timeout=0)
    may_end.set()

    assert (await first, await second) == (b"slow", b"slow")


async def test_a_call_that_failed_is_done_again(memory: ReplayCache) -> None:
    async def fails(kept: CachedReply) -> bytes:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await memory.once(KEY, fails)

    assert await memory.again(KEY, b"boot 0.1", False, Work()) == b"answer 1"


async def test_a_call_that_never_came_is_done(memory: ReplayCache) -> None:
    assert await memory.again(KEY, b"boot 0.1", False, Work()) == b"answer 1"


@pytest.mark.parametrize("repeat", [b"another 0.1", b"? 0.1", b"boot", b"boot soon", b""])
async def test_nobody_guesses_about_a_call_of_before(memory: ReplayCache, repeat: bytes) -> None:
    """One that went to another server, or to this one before it was restarted."""
    work = Work()

    with pytest.raises(Problem) as problem:
        await memory.again(KEY, repeat, False, work)

    assert problem.value.kind == "cannot-tell"
    assert problem.value.failure is not None
    error = error_of(problem.value.failure)
    assert isinstance(error, DriverUnavailable), "which is what the driver raises"
    assert error.done is None
    assert work.done == 0
    assert await memory.again(KEY, repeat, True, work) == b"answer 1", "what may be repeated is"


async def test_what_was_forgotten_is_not_taken_for_what_never_came(memory: ReplayCache, watch: Watch) -> None:
    await memory.once(KEY, Work())
    watch.seconds += replay_cache.KEPT_SECONDS + 1
    await memory.once(("token", "settle", b"call-2", 0), Work())

    with pytest.raises(Problem, match="does not know"):
        await memory.again(KEY, b"boot 130.0", False, Work())
    assert await memory.again(("token", "settle", b"call-3", 0), b"boot 60.0", False, Work()) == b"answer 1"


async def test_the_memory_is_bounded_in_calls_and_in_bytes(
    memory: ReplayCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_cache, "KEPT_CALLS", 10)
    for number in range(50):
        await memory.once(("token", "settle", b"%d" % number, 0), Work())
    assert len(memory) == 10

    async def large(kept: CachedReply) -> bytes:
        return b"x" * 100

    monkeypatch.setattr(replay_cache, "KEPT_BYTES", 500)
    for number in range(50):
        await memory.once(("token", "settle", b"large %d" % number, 0), large)
    assert len(memory) <= 7


async def test_one_that_takes_long_does_not_keep_the_others(
    memory: ReplayCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_cache, "KEPT_CALLS", 10)
    may_end = asyncio.Event()

    async def slow(kept: CachedReply) -> bytes:
        await may_end.wait()
        return b"slow"

    waiting = asyncio.ensure_future(memory.once(KEY, slow))
    await asyncio.wait([waiting], timeout=0)
    for number in range(50):
        await memory.once(("token", "settle", b"%d" % number, 0), Work())
    assert len(memory) == 10
    may_end.set()

    assert await waiting == b"slow"
    assert await memory.again(KEY, b"boot 0.1", False, Work()) == b"slow"


async def test_an_id_that_is_used_twice_harms_nobody_but_its_caller(memory: ReplayCache) -> None:
    work = Work()

    answers = [await memory.once(KEY, work), await memory.once(KEY, work)]

    assert answers == [b"answer 1", b"answer 2"]
    assert len(memory) == 1


async def test_callers_do_not_share_their_calls(memory: ReplayCache) -> None:
    work = Work()
    await memory.once(KEY, work)

    assert await memory.again(("another", *KEY[1:]), b"boot 0.1", False, work) == b"answer 2"


async def test_an_id_that_comes_with_another_verb_is_another_call(memory: ReplayCache) -> None:
    work = Work()
    await memory.once(KEY, work)

    assert await memory.again(("token", "delete", *KEY[2:]), b"boot 0.1", False, work) == b"answer 2"


def test_not_to_know_is_no_failure_of_the_server() -> None:
    assert KINDS["cannot-tell"][0] < 500

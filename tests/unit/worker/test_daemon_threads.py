"""Threads for blocking calls that never keep a process alive."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from taskharbor.worker.daemon_threads import DaemonThreads

SLOW = 30.0


def test_more_calls_than_threads_are_all_done_and_by_daemons():
    pool = DaemonThreads(2)
    gate = threading.Event()

    def call(number):
        gate.wait(SLOW)
        return number, threading.current_thread()

    calls = [pool.submit(call, number) for number in range(10)]
    gate.set()
    answers = [one.result(SLOW) for one in calls]

    assert [number for number, _ in answers] == list(range(10))
    assert all(thread.daemon for _, thread in answers)
    assert len({thread for _, thread in answers}) <= 2
    pool.shutdown()


def test_an_idle_thread_is_used_again():
    pool = DaemonThreads(8)
    first = pool.submit(threading.get_ident).result(SLOW)
    assert pool.submit(threading.get_ident).result(SLOW) == first
    pool.shutdown()


def test_as_many_calls_as_threads_run_side_by_side():
    pool = DaemonThreads(3)
    meeting = threading.Barrier(3)
    for _ in range(3):
        wait([pool.submit(meeting.wait, SLOW) for _ in range(3)], SLOW)
    assert not meeting.broken
    pool.shutdown()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_whatever_a_call_raises_reaches_who_waits_and_the_thread_lives_on(error):
    def fails():
        raise error("no")

    pool = DaemonThreads(1)
    with pytest.raises(error):
        pool.submit(fails).result(SLOW)
    assert pool.submit(lambda: 7).result(SLOW) == 7
    pool.shutdown()


def test_after_the_end_nothing_is_taken_and_nothing_is_waited_for():
    pool = DaemonThreads(1)
    gate, has_begun = threading.Event(), threading.Event()

    def call():
        has_begun.set()
        return gate.wait(SLOW)

    running = pool.submit(call)
    assert has_begun.wait(SLOW)
    waiting = pool.submit(int)

    pool.shutdown(wait=True, cancel_futures=True)

    assert not running.done()
    with pytest.raises(CancelledError):
        waiting.result(SLOW)
    with pytest.raises(RuntimeError):
        pool.submit(int)
    gate.set()
    running.result(SLOW)

"""The last seconds of a worker's process, and how much room it takes."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from taskharbor.worker import forced_exit, memory_use


def test_a_process_that_left_no_thread_behind_takes_its_time(monkeypatch):
    monkeypatch.setattr(forced_exit, "left_behind", list)
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it was cut short"))

    forced_exit._exit_after(0, 0)


def test_a_process_that_waits_for_threads_of_handlers_is_ended_with_its_code(monkeypatch, caplog):
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left-over")
    thread.start()
    try:
        forced_exit._exit_after(3, 0)
    finally:
        go.set()
        thread.join()

    assert codes == [3]
    assert "left-over" in caplog.text


@pytest.mark.parametrize("text", ["", "12", "a b c"])
def test_where_the_system_hides_it_the_memory_is_the_most_there_ever_was(monkeypatch, tmp_path, text):
    odd = tmp_path / "statm"
    odd.write_text(text)

    for place in (odd, Path("/nowhere/statm")):
        monkeypatch.setattr(memory_use, "_STATM", place)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert memory_use.resident_memory() in (most, most * 1024)

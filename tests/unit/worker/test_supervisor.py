"""The supervisor's own decisions; with real processes it is met in tests/integration/worker."""

from __future__ import annotations

import asyncio
import os

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.worker.supervisor import MISCONFIGURED, Supervisor, SupervisorConfig, _WorkerProcess


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"app": "no_colon"}, "module:name"),
        ({"app": "a:b", "processes": 0}, "1 and 1000"),
        ({"app": "a:b", "processes": 1001}, "1 and 1000"),
    ],
)
def test_a_supervisor_that_cannot_work_says_so(fields, why):
    with pytest.raises(ConfigurationError, match=why):
        SupervisorConfig(**fields)


def test_one_process_and_a_thousand_are_fine():
    assert [SupervisorConfig(app="a:b", processes=count).processes for count in (1, 1000)] == [1, 1000]


async def test_an_app_that_cannot_start_ends_the_supervisor_instead_of_being_tried_for_ever():
    supervisor = Supervisor(SupervisorConfig(app="a:b"))

    assert not supervisor._is_over(1)
    assert supervisor._is_over(MISCONFIGURED)
    assert supervisor._is_over(1)
    assert supervisor._exit_code == MISCONFIGURED


class Reports:
    def __init__(self) -> None:
        self.received: list[tuple[int, bytes]] = []

    def started(self, pid: int) -> None: ...

    def ended(self, pid: int, how: str) -> None: ...

    def reported(self, pid: int, data: bytes) -> None:
        self.received.append((pid, data))


@pytest.mark.parametrize("end", [b"", b"\0\0", (1 << 31).to_bytes(4, "big") + b"never read"])
async def test_reports_are_handed_on_until_a_word_makes_no_sense(end):
    process = _WorkerProcess.__new__(_WorkerProcess)
    process._reader, mouth = os.pipe()
    process._process = type("Process", (), {"pid": 7})()
    os.write(mouth, b"\0\0\0\3one" + b"\0\0\0\3two" + end)
    os.close(mouth)
    reports = Reports()

    await asyncio.wait_for(process.pass_reports(reports), 30)

    assert reports.received == [(7, b"one"), (7, b"two")]

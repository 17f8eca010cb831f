"""Nothing that a harbor keeps for its users gets into a log line: not a payload, a token or a password."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Query
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from tests.integration.cli.conftest import Command

SECRET = "correct-horse-battery-staple"
PASSWORD = "hunter2-and-more"
APP = """
import asyncio, logging, os
from taskharbor.harbor import Harbor

harbor = Harbor("sqlite:///jobs.db?durability=normal")
log = logging.getLogger("app")

@harbor.task
async def works(secret: str) -> str:
    log.info("at work")
    return secret

@harbor.task
def works_in_thread(secret: str) -> None:
    log.info("at work")

@harbor.task(run_in="process")
def works_in_process(secret: str) -> None:
    log.info("at work")

@harbor.task(max_attempts=2, min_backoff="1ms", max_backoff="1ms")
async def fails(secret: str) -> None:
    raise RuntimeError("no luck")

@harbor.task(max_attempts=1, timeout="10ms")
async def too_slow(secret: str) -> None:
    await asyncio.sleep(60)

@harbor.task(run_in="process", max_stalls=1)
def dies(secret: str) -> None:
    os._exit(3)

@harbor.task(max_attempts=1)
async def refuses(secret: int, more: list[int]) -> None: ...

@harbor.task(max_attempts=1)
async def cannot_return(secret: str) -> object:
    return object()
"""
TYPES = (
    "works",
    "works_in_thread",
    "works_in_process",
    "fails",
    "too_slow",
    "dies",
    "refuses",
    "cannot_return",
    "unknown",
)


@pytest.fixture
def app(taskharbor: Command) -> Command:
    (Path(taskharbor.folder) / "app.py").write_text(APP)
    taskharbor.environment["TASKHARBOR_URL"] = "sqlite:///jobs.db?durability=normal"
    return taskharbor


def put_secrets(app: Command) -> None:
    """Jobs of every kind, with the secret in payload, key, idempotency key and headers."""

    async def go() -> None:
        entropy = Entropy()
        async with connect(f"sqlite:///{app.folder}/jobs.db") as driver:
            for type_name in TYPES:
                await driver.enqueue(
                    [
                        NewJob(
                            id=entropy.job_id(driver.clock.now()),
                            type=type_name,
                            payload=json.dumps({"secret": SECRET}).encode(),
                            idempotency_key=f"{SECRET}-{type_name}".encode(),
                            headers={"x-auth": SECRET},
                            timeout=_limit(type_name),
                            max_attempts=2,
                            max_stalls=1,
                        )
                    ]
                )

    asyncio.run(go())


def _limit(type_name: str) -> timedelta:
    return timedelta(milliseconds=10) if type_name == "too_slow" else timedelta(0)


def tokens(app: Command) -> list[str]:
    async def go() -> list[str]:
        async with connect(f"sqlite:///{app.folder}/jobs.db") as driver:
            ids = [job.id for job in (await driver.find(Query())).jobs]
            records = await driver.get(ids)
            return [record.settled_token for record in records if record and record.settled_token]

    return asyncio.run(go())


def run_at_debug(app: Command, form: str) -> str:
    """Everything that a whole run says."""
    put_secrets(app)
    done = app("worker", "app:harbor", "--burst", "--log-format", form, "--log-level", "debug", "-vv")
    assert done.code == 0, done.err
    return done.out + done.err


def check_nothing_leaks(app: Command, output: str) -> None:
    assert output.count("at work") == 3
    assert SECRET not in output
    settled = tokens(app)
    assert len(settled) >= 7
    assert [token for token in settled if token in output] == []


@pytest.mark.parametrize("form", ["console", "logfmt"])
def test_no_line_of_a_whole_run_shows_a_payload_or_a_token(app: Command, form: str) -> None:
    check_nothing_leaks(app, run_at_debug(app, form))


def test_wherever_a_handler_runs_its_lines_look_alike_and_name_its_job_and_nothing_secret(
    app: Command,
) -> None:
    output = run_at_debug(app, "json")

    check_nothing_leaks(app, output)
    records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    at_work = {record["task"]: record for record in records if record["message"] == "at work"}
    assert set(at_work) == {"works", "works_in_thread", "works_in_process"}
    for record in at_work.values():
        assert record["logger"] == "app"
        assert record["job_id"]
        assert record["worker"]
        assert (record["queue"], record["attempt"]) == ("default", 1)


def test_no_line_shows_the_password_of_a_store_that_cannot_be_reached(taskharbor: Command) -> None:
    url = f"postgresql://app:{PASSWORD}@127.0.0.1:9/jobs?connect_timeout=1"
    flags = ["--log-format", "json", "--log-level", "debug", "-vv", "--url", url]

    done = taskharbor("worker", "--handle", "x=echo", "--burst", "--store-wait", "0s", *flags)

    assert done.code != 0
    assert "127.0.0.1" in done.err
    assert PASSWORD not in done.out + done.err

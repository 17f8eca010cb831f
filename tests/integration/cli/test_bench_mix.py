"""taskharbor bench --mix as a command of its own, on every store that several processes can share."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from taskharbor.testing.http_server import fresh_http_url
from taskharbor.testing.servers import fresh_cluster_url, fresh_postgres_url, fresh_redis_url
from tests.integration.cli.conftest import Command

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/jobs.db",
    "postgres": lambda _: fresh_postgres_url(),
    "redis": lambda _: fresh_redis_url(),
    "redis.cluster": lambda _: fresh_cluster_url(),
    "http": lambda _: fresh_http_url(durable=True),
}
THERE = [name for name in STORES if find_spec(f"taskharbor.drivers.{name}")]


@pytest.mark.more("hundreds of jobs, or megabytes of them")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("store", THERE)
def test_every_job_is_accounted_for_and_nothing_is_left(taskharbor: Command, store: str) -> None:
    taskharbor.environment["TASKHARBOR_URL"] = STORES[store](taskharbor.folder)
    taskharbor("migrate", "up")

    answer = taskharbor("bench", "--mix", "--jobs", "200", "--batch", "30", "--json", timeout=150)

    assert answer.code == 0, answer.err
    assert "every job ended as expected" in answer.err
    rows = {row["name"]: row for row in answer.json["items"]}
    done = {name: row["completed"] for name, row in rows.items() if name not in ("keyed", "all")}
    assert done == {
        "plain": 80,
        "flaky": 20,
        "failing": 0,
        "delayed": 20,
        "priority": 30,
        "parent": 10,
        "child": 10,
    }
    assert rows["keyed"]["completed"] + rows["keyed"]["merged"] == 20
    assert (rows["failing"]["failed"], rows["failing"]["retries"]) == (10, 10)
    assert rows["flaky"]["retries"] == 30  # every other one fails twice
    assert taskharbor("queues", "list", "--json").json["items"] == []
    assert taskharbor("workers", "list", "--json").json["items"] == []


@pytest.mark.timeout(120)
def test_the_table_fits_80_columns_without_a_terminal(taskharbor: Command) -> None:
    taskharbor("migrate", "up")

    answer = taskharbor("bench", "--mix", "--jobs", "40")

    assert answer.code == 0, answer.err
    heading, *rows = answer.out.splitlines()
    assert " ".join(heading.split()) == "KIND JOBS DONE FAILED RETRIES P50 P95 P99 MAX JOBS/S"
    assert len(rows) == 9
    assert max(map(len, (heading, *rows))) <= 80


@pytest.mark.timeout(120)
def test_ctrl_c_stops_the_workers_and_cleans_up(taskharbor: Command) -> None:
    taskharbor("migrate", "up")
    process = subprocess.Popen(
        [sys.executable, "-m", "taskharbor", "bench", "--mix", "--jobs", "100000"],
        cwd=taskharbor.folder,
        env=taskharbor.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not _has_ended(taskharbor):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert taskharbor("queues", "list", "--json").json["items"] == []
    assert taskharbor("workers", "list", "--json").json["items"] == []


def _has_ended(taskharbor: Command) -> bool:
    """Whether a worker has finished something: then it is in the midst of it."""
    return any(queue["completed"] for queue in taskharbor("queues", "list", "--json").json["items"])

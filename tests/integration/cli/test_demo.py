"""taskharbor demo: the whole thing in one command."""

import json
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Command


@pytest.mark.timeout(120)
def test_the_demo_accounts_for_every_job(taskharbor: Command, tmp_path: Path) -> None:
    del taskharbor.environment["TASKHARBOR_URL"]
    taskharbor.environment["TMPDIR"] = str(tmp_path)  # other demos may run beside this one

    answer = taskharbor("demo", "--json", timeout=100)  # without a terminal: --once

    account = json.loads(answer.out)
    assert answer.code == 0, answer.err
    assert account["is_balanced"] is True
    assert sum(account["results"].values()) == account["requests"] == 66
    assert sum(account["states"].values()) == account["jobs"] == account["stored"]
    assert account["states"] == {"completed": 53, "failed": 5, "cancelled": 4}
    assert account["results"]["updated"] == 4
    assert account["retries"] >= 12
    assert account["stalls"] >= 3
    assert list(tmp_path.glob("taskharbor-demo-*")) == []


@pytest.mark.more("starts many processes")
@pytest.mark.timeout(120)
def test_the_demo_leaves_a_store_of_yours_as_it_was(taskharbor: Command) -> None:
    mine = taskharbor("enqueue", "send_welcome").out.strip()

    answer = taskharbor("demo", "--once", "--processes", "1", timeout=100)

    assert answer.code == 0, answer.err
    assert "every job ended as expected" in answer.out
    assert taskharbor("jobs", "list", "-o", "ids").out.split() == [mine]


def test_the_demo_needs_a_store_that_processes_can_share(taskharbor: Command) -> None:
    answer = taskharbor("demo", "--once", "--url", "memory://")

    assert answer.code == 2
    assert "share" in answer.err

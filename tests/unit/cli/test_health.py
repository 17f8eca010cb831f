"""taskharbor health, against real probes."""

import pytest

from taskharbor.cli.health import serve_health
from taskharbor.testing.servers import free_port
from tests.unit.cli.conftest import Shell


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_process_that_answers_is_healthy(shell: Shell, port: int) -> None:
    with serve_health("127.0.0.1", port, lambda: True):
        answer = shell.bare("health", f"http://127.0.0.1:{port}")

    assert (answer.code, answer.out) == (0, f"http://127.0.0.1:{port}/livez answers 200\n")


def test_a_store_that_is_away_is_no_reason_to_restart(shell: Shell, port: int) -> None:
    with serve_health("127.0.0.1", port, lambda: False):
        alive = shell.bare("health", f"127.0.0.1:{port}/")
        ready = shell.bare("health", f"127.0.0.1:{port}/readyz", "--json")

    assert alive.code == 0
    assert (ready.code, ready.json["status"], ready.json["is_healthy"]) == (1, 503, False)


def test_no_answer_is_not_healthy(shell: Shell, port: int) -> None:
    answer = shell.bare("health", f"127.0.0.1:{port}")

    assert answer.code == 1
    assert answer.out.startswith(f"http://127.0.0.1:{port}/livez does not answer: ")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "postgresql://db/jobs", "http://"])
def test_what_is_no_address_is_refused(shell: Shell, url: str) -> None:
    answer = shell.bare("health", url)

    assert answer.code == 2
    assert "write http://HOST:PORT" in answer.err


def test_a_port_that_cannot_be_is_not_healthy(shell: Shell) -> None:
    assert shell.bare("health", "http://127.0.0.1:99999").code == 1

"""Whatever the OpenAPI document allows or forbids is sent to a real server, and nothing may break.

Schemathesis makes the requests from the document that the server itself hands out, and checks every
answer against it: no 5xx, only documented codes, media types and bodies, no way around the token.

One of its checks is left out: `positive_data_acceptance` wants every body that fits the schema to be
taken, and some rules are no JSON Schema: run_at or delay_s, max_backoff_s above min_backoff_s, a
cursor of this listing, a schedule that fires at all.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from taskharbor import Harbor
from taskharbor.web.app import App
from taskharbor.web.config import ServerConfig
from taskharbor.web.service import Service
from tests.integration.http.api import make_token, served, token_file

_LEFT_OUT = "positive_data_acceptance"


class Counted(App):
    """Counts its answers by status."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.answers: Counter[int] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answers[message["status"]] += 1
            await send(message)

        await super().__call__(scope, receive, counted)


def explored(folder: Path, examples: int, phases: str, *without: str) -> Counter[int]:
    """The answers of one run, by status; fails with the run's own words where it found something.

    `without`: patterns of paths that are left to a longer run.
    """
    token = make_token(token_file(folder), "admin")
    config = ServerConfig(
        tokens=folder / "tokens.json",
        max_wait_seconds=0.01,
        rate_per_second=0,
        driver_rate_per_second=0,
        max_queues_per_token=10**9,
        max_schedules=10**9,
    )
    app = Counted(Service(Harbor("memory://"), config))
    with served(app) as port:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"),
                "run",
                f"http://127.0.0.1:{port}/api/openapi.json",
                f"--header=Authorization: Bearer {token}",
                f"--max-examples={examples}",
                f"--phases={phases}",
                f"--exclude-checks={_LEFT_OUT}",
                "--exclude-path=/api/events",  # it never ends; tests/integration/http/test_events.py has it
                "--exclude-path=/api/driver/wakeups",  # nor does this; the kit has it
                *(f"--exclude-path-regex={pattern}" for pattern in without),
                "--generation-database=none",
                "--request-timeout=60",
                "--continue-on-failure",
                "--no-color",
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"Tested: +\d\d", done.stdout), done.stdout[-2000:]
    return app.answers


@pytest.mark.more("a thousand requests")
@pytest.mark.timeout(900)
def test_a_thousand_requests_find_nothing(tmp_path: Path) -> None:
    answers = explored(tmp_path, 3, "coverage", "^/api/driver/(?!get$|reserve$)")

    assert answers.total() >= 1000
    assert not [status for status in answers if status >= 500]
    assert answers[200] + answers[201] > 20


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_requests_find_nothing(tmp_path: Path) -> None:
    answers = explored(tmp_path, 450, "examples,coverage,fuzzing,stateful")

    assert answers.total() >= 10_000
    assert not [status for status in answers if status >= 500]

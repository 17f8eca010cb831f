"""The requests on pages about HTTP are answered by a real server as the pages show it."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskharbor.testing.http_server import HttpServer
from tests.examples.pages import blocks, text_of

HTTP, DRIVER, WORKFLOWS = (
    "docs/reference/http.md",
    "docs/reference/http-driver.md",
    "docs/guides/workflows.md",
)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db") as server:
        yield server.port


def curls(page: str) -> list[list[str]]:
    """The calls of curl on a page, as words."""
    lines = [line for block in blocks(page) for line in block.text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("curl ")]


class Request:
    """What a call of curl asks for; for those flags that the pages use."""

    def __init__(self, words: list[str]) -> None:
        self.method, self.body, self.headers = "GET", None, dict[str, str]()
        rest = iter(words)
        for word in rest:
            if word == "-d":
                self.method, self.body = "POST", next(rest)
            elif word == "-H":
                name, _, value = next(rest).partition(": ")
                self.headers[name] = value
            elif word == "-X":
                self.method = next(rest)
            elif not word.startswith("-"):
                self.path = re.sub(r"^(https?://)?[^/]+", "", word)

    @contextmanager
    def sent(self, port: int) -> Iterator[http.client.HTTPResponse]:
        headers = {name: value for name, value in self.headers.items() if name != "Authorization"}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request(self.method, self.path, self.body, headers)
            with connection.getresponse() as answer:
                yield answer


def ask(port: int, words: list[str], **changes: str) -> Any:
    request = Request(words)
    for old, new in changes.items():
        request.path = request.path.replace(f"${old}", new)
    with request.sent(port) as answer:
        text = answer.read()
        assert answer.status < 300, (request.path, answer.status, text)
    return json.loads(text) if text else None


def enqueued(port: int, **job: Any) -> str:
    words = ["/api/jobs", "-H", "Content-Type: application/json", "-d", json.dumps({"type": "send", **job})]
    return str(ask(port, words)["id"])


def test_the_first_request_is_answered_as_shown(port: int) -> None:
    shown = json.loads(blocks(HTTP)[0].text.splitlines()[1])

    answer = ask(port, curls(HTTP)[0])

    assert answer.keys() == shown.keys()
    assert (answer["result"], answer["version"]) == (shown["result"], shown["version"])


def test_the_stream_of_events_begins_as_shown(port: int) -> None:
    enqueued(port)
    [block] = [block.text for block in blocks(HTTP) if block.text.startswith("curl -N")]
    shown = [re.sub(r"(id|data): .*", r"\1", line) for line in block.splitlines()[1:]]

    with Request(curls(HTTP)[1]).sent(port) as answer:
        lines = [answer.readline().decode().rstrip("\n") for _ in shown]

    assert [re.sub(r"(id|data): .*", r"\1", line) for line in lines] == shown
    assert [name for name in json.loads(lines[-1].removeprefix("data: ")) if f'"{name}":' not in block] == []


def test_the_graph_on_the_page_is_stored(port: int) -> None:
    [graph] = [block.text for block in blocks(HTTP) if '"nodes"' in block.text and block.language == "json"]

    answer = ask(port, ["/api/workflows", "-H", "Content-Type: application/json", "-d", graph])

    assert answer["nodes"].keys() >= {node["name"] for node in json.loads(graph)["nodes"]}


def test_a_problem_looks_as_shown(port: int) -> None:
    [shown] = [json.loads(block.text) for block in blocks(HTTP) if "problem:validation" in block.text]
    body = json.dumps({"type": "send", "priority": 1000})

    words = ["/api/jobs", "-H", "Content-Type: application/json", "-d", body]
    with Request(words).sent(port) as answer:
        problem = json.loads(answer.read())

    same = {"type", "title", "status", "detail", "instance", "retryable", "errors"}
    assert answer.getheader("Content-Type") == "application/problem+json"
    assert problem.keys() == shown.keys()
    assert {name: problem[name] for name in same} == {name: shown[name] for name in same}


def test_the_board_has_what_the_page_shows(port: int) -> None:
    enqueued(port, queue="mail")
    [block] = [block.text for block in blocks(HTTP) if '"verdict"' in block.text]
    board = ask(port, ["/api/board"])

    def names(value: Any) -> set[str]:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        own = set(value) if isinstance(value, dict) else set()
        return own.union(*map(names, inner))

    # A worker has slots, and only a harbor that needs somebody has needs with actions.
    shown = set(re.findall(r'"(\w+)":', block)) - {"cpu", "busy", "total"}
    assert shown - names(board) - {"kind", "actions", "label", "view", "queue"} == set()


def test_a_worker_written_by_hand_claims_and_ends_a_job(port: int) -> None:
    reserve, settle = curls(DRIVER)
    job = enqueued(port, queue="mail")

    claimed = ask(port, reserve)
    [lease] = re.findall(r'"token":\s*"([^"]+)"', json.dumps(claimed))
    body = settle[settle.index("-d") + 1].replace('"job_id": "…"', f'"job_id": "{job}"')
    settle[settle.index("-d") + 1] = body.replace('"token": "…"', f'"token": "{lease}"')
    ask(port, settle)

    assert ask(port, [f"/api/jobs/{job}"])["state"] == "completed"


def test_an_event_is_sent_without_python(port: int) -> None:
    [words] = curls(WORKFLOWS)

    ask(port, words, ID=enqueued(port))


def test_every_call_of_curl_to_a_server_of_ours_is_made_here() -> None:
    ours = re.compile(r"curl [^\n]*(:8484|jobs\.example)")
    pages = [HTTP, DRIVER, WORKFLOWS]

    assert all(ours.search(text_of(page).replace("\\\n", " ")) for page in pages)

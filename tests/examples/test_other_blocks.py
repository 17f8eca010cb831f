"""Blocks that are neither Python nor calls of `taskharbor`: each is run, or compared with what it shows."""

import json
import logging
import re
import shlex
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from taskharbor import Harbor, JobContext
from taskharbor.model.search import parse_search
from taskharbor.observe.logs import JobLogFilter, Json
from taskharbor.testing import InlineHarbor
from taskharbor.testing.simulator.__main__ import _options
from tests.examples.pages import PAGES, ROOT, blocks, calls, shell_lines, text_of, trouble_with

CHECKED = {
    "taskharbor": "parsed by the command line: test_blocks.py",
    "flask": "`flask taskharbor` likewise; the application by tests/integration/frameworks/test_flask.py",
    "python": "test_tutorials.py, test_readme.py, test_projects.py; manage.py by test_django_shop.py",
    "pip": "the extras: test_blocks.py",
    "make": "the targets: test_blocks.py",
    "curl": "made by test_http_blocks.py; those of the examples by their own tests",
    "uvicorn": "the applications are started by test_fastapi_service.py and test_django_shop.py",
    "createdb": "a tool of PostgreSQL",
    "pytest": "tests/contract/test_toy_driver.py runs these files",
    "git": "test_first_change.py",
    "cd": "the shell's own",
    "export": "the shell's own; the variables by test_names.py",
    "kill": "the shell's own",
    "echo": "the shell's own",
    "opentelemetry-instrument": "the agent's; what follows is parsed by the command line",
    "sqlite3": "its statement, below",
    "install": "a tool of the system; its files are looked for below",
    "useradd": "a tool of the system",
    "sudo": "the same; what follows is parsed by the command line",
    "kubectl": "no cluster here; its files and secrets are looked for below",
    "systemctl": "no systemd here; its units are looked for below",
    "docker": "no daemon here; the files by tests/surface/test_container_files.py",
}
NO_COMMANDS = {
    "ARCHITECTURE.md": "trees of files: tests/surface/test_architecture.py",
    "docs/internals/parked-claims.md": "a drawing",
    "docs/operations/gpu-results.md": "the output of tools/try_gpu.py",
}


def is_command(line: str) -> bool:
    return re.match(r"\$? ?[A-Z_]+=|[a-z0-9.-]+( |$)", line) is not None


def test_every_command_that_a_reader_would_type_is_checked_somewhere() -> None:
    found = {
        (page, word)
        for page in PAGES
        if page not in NO_COMMANDS
        for line in shell_lines(page)
        if is_command(line) and (word := first_word(line)) not in CHECKED
    }

    output = {
        ("docs/guides/routing.md", "is"),
        ("docs/guides/workers-over-http.md", "database"),
        ("docs/guides/workers-over-http.md", "location"),
    }
    assert found == output


def first_word(line: str) -> str:
    return re.sub(r"^([A-Z_]+=(\$\([^)]*\)|\S*) )*", "", line).split()[0]


def test_a_message_that_a_page_quotes_is_one_of_ours() -> None:
    [message] = [
        block.text.strip() for block in blocks("docs/guides/routing.md") if "is ready, but" in block.text
    ]
    pattern = message.replace("gpu", "{…}").replace("default", "{…}")

    source = re.sub(r"\{[^}]*\}", "{…}", (ROOT / "src/taskharbor/client/why.py").read_text("utf-8"))
    assert pattern.partition(" {…}")[0] in source
    assert "no live worker of queue {…} offers it" in source


def test_the_search_on_its_page_is_one() -> None:
    [example] = [block.text for block in blocks("docs/reference/search.md")]

    assert len(parse_search(example.strip()).terms) == 10


def test_every_search_in_a_command_is_one() -> None:
    searches = [
        word
        for page in PAGES
        for words in calls(page, "taskharbor")
        for before, word in pairwise(words)
        if re.match(r"-?[a-z.]+:", word) and before in {"--where", "list"} and "harbor" not in word
    ]

    assert len(searches) >= 8
    for search in searches:
        parse_search(search)


def test_commands_of_the_simulator_have_these_flags() -> None:
    [block] = [block.text for block in blocks("docs/guides/simulation.md") if block.language == "text"]
    lines = [re.split(r" {3,}", line)[0] for line in block.splitlines()]

    seeds = [
        _options(shlex.split(line.removeprefix("python -m taskharbor.testing.simulator"))).seed
        for line in lines
    ]

    assert seeds == [42, 42, 0, 42, 42, 42, 42]


def test_the_view_of_sqlite_answers_the_query_of_its_page(tmp_path: Path) -> None:
    [line] = [line for line in shell_lines("docs/reference/sqlite.md") if line.startswith("sqlite3 ")]
    with Harbor(f"sqlite:///{tmp_path}/jobs.db") as harbor:

        @harbor.task(queue="mail", max_attempts=1)
        def send() -> None:
            raise ValueError("no such address")

        job = send.enqueue()
        harbor.worker().run(until_idle=True)

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        rows = connection.execute(shlex.split(line)[-1]).fetchall()

    assert [row[0] for row in rows] == [job.id]


def test_a_line_of_the_log_has_the_fields_of_the_page() -> None:
    [shown] = [json.loads(b.text) for b in blocks("docs/guides/observing.md") if b.text.startswith('{"at"')]
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(Json().format(record))

    handler, logger = Kept(), logging.getLogger("app")
    handler.addFilter(JobLogFilter())
    logger.addHandler(handler)
    with InlineHarbor() as harbor:

        @harbor.task(queue="mail")
        def send_welcome(ctx: JobContext) -> None:
            logger.warning("sent")

        send_welcome.enqueue()
    logger.removeHandler(handler)

    [line] = [json.loads(line) for line in lines]
    same = {"logger", "message", "task", "queue", "attempt"}
    assert line.keys() == shown.keys()
    assert {name: line[name] for name in same} == {name: shown[name] for name in same}


def test_the_image_of_an_app_is_started_by_a_command_of_ours() -> None:
    [block] = [block.text for block in blocks("docs/operations/docker.md") if block.text.startswith("FROM ")]
    header = text_of("Dockerfile").partition("ARG ")[0]

    command = json.loads(block.partition("CMD ")[2])
    assert trouble_with(command) is None
    assert [line for line in block.splitlines()[1:] if line not in header] == []


def test_secrets_and_units_of_the_pages_are_those_of_the_files() -> None:
    manifests = "\n".join(path.read_text("utf-8") for path in (ROOT / "deploy/kubernetes").glob("*.yaml"))
    secrets = re.findall(
        r"create secret generic (\S+) --from-(?:literal|file)=(\w+)", text_of("docs/operations/kubernetes.md")
    )
    units = {path.name for path in (ROOT / "deploy/systemd").iterdir()}

    assert len(secrets) == 3
    assert [name for name, _ in secrets if f"name: {name}" not in manifests and name not in manifests] == []
    [line] = [line for line in shell_lines("docs/operations/systemd.md") if "enable --now" in line]
    named = {re.sub(r"@\w+", "@", unit) + ".service" for unit in line.split()[3:]}
    assert named == units


@pytest.mark.parametrize("page", NO_COMMANDS)
def test_pages_without_commands_have_blocks(page: str) -> None:
    assert blocks(page)

"""Pages that list something list all of it."""

import re
import tomllib
from pathlib import Path

import pytest

from taskharbor.drivers.messages import MAX_PAGE
from taskharbor.model import checks, codec, text, transitions
from taskharbor.model.job import JobRecord
from taskharbor.model.worker_options import MAX_HELD
from taskharbor.web.api.schemas import MAX_JOBS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_first_page_leads_to_every_other():
    index = (DOCS / "README.md").read_text("utf-8")
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}

    linked = set(re.findall(r"\]\(([^)#:]+\.md)\)", index))

    decisions = {page for page in pages if page.startswith("decisions/")} - {"decisions/README.md"}
    assert pages - linked - decisions - {"README.md", "home.md"} == set()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_extra_has_its_row():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference/extras.md").read_text("utf-8"), re.MULTILINE)

    assert set(rows) == set(project["project"]["optional-dependencies"])


def test_every_field_of_a_job_is_explained():
    page = (DOCS / "reference/job-record.md").read_text("utf-8")

    explained = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)))

    assert sorted(explained) == sorted(JobRecord.__struct_fields__)
    assert f"the last {transitions.HISTORY_LENGTH} attempts" in page


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("payload of a job", f"{checks.MAX_PAYLOAD // 1024**2} MiB"),
        ("result of a job", f"{checks.MAX_PAYLOAD // 1024**2} MiB"),
        ("nesting of arguments", f"{codec.MAX_DEPTH} levels"),
        ("key, idempotency key", f"{checks.MAX_KEY} bytes"),
        ("headers of a job", f"{checks.MAX_HEADERS}, together {checks.MAX_HEADER_BYTES // 1024} KiB"),
        ("priority", f"-{checks.MAX_PRIORITY} to {checks.MAX_PRIORITY}"),
        ("`max_attempts`, `max_stalls`", f"{checks.MAX_COUNT:,}"),
        ("jobs in one `enqueue_many`", f"{checks.MAX_BATCH:,} | over HTTP {MAX_JOBS:,}"),
        ("jobs on one page of a list", f"{MAX_PAGE:,}"),
        ("`last_error`", f"{text.ERROR_LIMIT:,} bytes"),
        ("traceback of an attempt", f"{text.TRACE_LIMIT:,} bytes"),
        ("attempts in a job's history", f"the last {transitions.HISTORY_LENGTH}"),
        ("jobs held by one worker process", f"{MAX_HELD:,}"),
    ],
)
def test_the_page_of_sizes_says_what_holds(what, limit):
    assert f"| {what} | {limit}" in (DOCS / "reference/sizes.md").read_text("utf-8")

"""The Python on these pages runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "guides/dashboard.md",
    "guides/observing.md",
    "start/first-job.md",
    "guides/enqueueing.md",
    "guides/simulation.md",
    "guides/workers.md",
    "guides/retries.md",
    "guides/transactions.md",
    "reference/context.md",
    "guides/routing.md",
    "guides/limits.md",
    "guides/cancellation.md",
    "guides/speculation.md",
    "guides/schedules.md",
    "guides/failure-jobs.md",
    "guides/fastapi.md",
    "guides/sentry.md",
    "guides/flask.md",
    "reference/http.md",
    "guides/sqlalchemy.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    (tmp_path / "page.py").write_text("\n\n".join(blocks))

    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert blocks
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES)
def test_links_to_other_pages_lead_somewhere(page):
    text = (DOCS / page).read_text("utf-8")

    missing = [
        link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not ((DOCS / page).parent / link).exists()
    ]

    assert missing == []


LOOKS = r"taskharbor (?:enqueue|jobs|dlq|queues|workers|schedules|top|doctor|bench|migrate)\b[^`\n]*"


def test_every_command_of_the_first_page_names_its_store():
    text = (DOCS / "start/first-job.md").read_text("utf-8")

    found = re.findall(LOOKS, text)

    assert found
    assert [words for words in found if "-A app:harbor" not in words] == []


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda page: page.stem)
def test_commands_to_copy_name_their_store(page):
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)

    lines = [line for block in blocks for line in block.splitlines() if re.match(rf"(\$ )?{LOOKS}", line)]

    assert [line for line in lines if not re.search(r"-A |--app |--url ", line)] == []


ELSEWHERE = {
    "guides/testing.md": "its tests are run by tests/examples/test_projects.py",
    "guides/several-modules.md": "the same, with its commands",
    "guides/django.md": "quotes the shop: tests/integration/frameworks/test_django_shop.py",
    "guides/notebooks.md": "run in a notebook by tests/integration/frameworks/test_notebooks.py",
    "extending/write-a-driver.md": "put together and run by tests/contract/test_toy_driver.py",
}


def test_every_page_with_python_is_run_or_says_why_not():
    with_python = {
        str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "```python\n" in page.read_text("utf-8")
    }

    assert with_python - set(PAGES) == set(ELSEWHERE)

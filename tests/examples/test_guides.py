"""The Python on these pages runs as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ELSEWHERE = {
    "guides/testing.md": "its tests are run by tests/examples/test_projects.py",
    "guides/several-modules.md": "the same, with its commands",
    "guides/django.md": "quotes the shop: tests/integration/frameworks/test_django_shop.py",
    "guides/notebooks.md": "run in a notebook by tests/integration/frameworks/test_notebooks.py",
    "start/kill-it.md": "run and killed by tests/examples/test_tutorials.py",
    "start/fastapi-postgres.md": "quotes examples/fastapi_service: tests/examples/test_tutorials.py",
    "start/django-shop.md": "quotes examples/django_shop: the same",
    "extending/write-a-driver.md": "put together and run by tests/contract/test_toy_driver.py",
}
PYTHON = re.compile(r"^```python\n(?!# not run: )(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    name
    for page in DOCS.rglob("*.md")
    if PYTHON.search(page.read_text("utf-8")) and (name := page.relative_to(DOCS).as_posix()) not in ELSEWHERE
)
"""Every page with Python that runs here: a block that cannot run begins with `# not run:` and the reason."""


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path):
    blocks = PYTHON.findall((DOCS / page).read_text("utf-8"))
    (tmp_path / "page.py").write_text("\n\n".join(blocks))

    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert blocks
    assert (done.returncode, done.stderr) == (0, "")


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


def test_pages_that_are_run_elsewhere_have_python():
    assert [name for name in ELSEWHERE if not PYTHON.search((DOCS / name).read_text("utf-8"))] == []
    assert len(PAGES) >= 20

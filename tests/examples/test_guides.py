"""The Python on these pages runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "guides/observing.md",
    "start/first-job.md",
    "guides/enqueueing.md",
    "guides/testing.md",
    "guides/simulation.md",
    "guides/workers.md",
    "guides/routing.md",
    "guides/limits.md",
    "guides/cancellation.md",
    "guides/speculation.md",
    "guides/schedules.md",
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

"""examples/django_shop: started, used by a real client, its worker killed; and the page that quotes it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.frameworks.sites import Site, environment, eventually, serving

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples/django_shop"
SERVER = ("uvicorn", "shop.asgi:application", "--host", "127.0.0.1", "--port", "0")
WORKER = ("taskharbor", "worker", "--lease", "1s")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("*.sqlite3", "__pycache__"))
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v", "0"], cwd=folder, env=environment(), check=True
    )
    return folder


def worker(shop: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "manage.py", *WORKER], cwd=shop, env=environment())


def order(site: Site, number: int) -> dict[str, Any]:
    shown: dict[str, Any] = site.http.get(f"/orders/{number}/").json()
    return shown


@pytest.mark.more("four processes of Django")
@pytest.mark.timeout(300)
def test_a_receipt_is_sent_although_a_worker_is_killed(shop: Path) -> None:
    with serving(shop, *SERVER) as site:
        made = site.http.post("/orders/", data={"name": "Ada"})
        number = made.json()["order"]
        assert made.status_code == 201
        assert order(site, number)["status"] == "READY"
        with worker(shop) as first:
            eventually(lambda: order(site, number)["status"] == "RUNNING")
            first.send_signal(signal.SIGKILL)
            first.wait()
        with worker(shop) as second:
            try:
                eventually(lambda: order(site, number)["status"] == "SUCCESSFUL")
            finally:
                second.terminate()
        shown = order(site, number)

    assert shown == {"receipt": "Thank you, Ada!", "status": "SUCCESSFUL", "attempts": 2}


def test_the_page_quotes_the_example() -> None:
    page = (ROOT / "docs/guides/django.md").read_text("utf-8")
    quotes = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)

    assert len(quotes) == page.count("```python")
    assert [name for name, text in quotes if text not in (SHOP / name).read_text("utf-8")] == []

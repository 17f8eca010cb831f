"""examples/fastapi_service: started, used by a real HTTP client, and killed; every order gets one invoice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import psycopg
import pytest

from taskharbor.testing.servers.postgres import postgres_url
from tests.integration.frameworks.sites import Site, environment, eventually, serving

FOLDER = Path(__file__).parents[2] / "examples/fastapi_service"
DATABASE = f"invoices_{os.getpid()}"

pytestmark = [
    pytest.mark.more("starts and kills a whole application, and waits for a lease to run out"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """The environment of the example, with a database of its own."""
    server = postgres_url()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {DATABASE}".encode())
        url = urlsplit(server)._replace(path=f"/{DATABASE}").geturl()
        variables = {"DATABASE_URL": url, "SERVICE_SECRET": "a secret", "PYTHONDONTWRITEBYTECODE": "1"}
        migrate = [sys.executable, "-m", "taskharbor", "migrate", "up", "--url", "env:DATABASE_URL"]
        subprocess.run(migrate, env={**environment(), **variables}, capture_output=True, check=True)
        yield variables
        connection.execute(f"drop database {DATABASE} with (force)".encode())


def service(variables: dict[str, str]) -> AbstractContextManager[Site]:
    return serving(FOLDER, "uvicorn", "service:app", "--host", "127.0.0.1", "--port", "0", **variables)


@contextmanager
def worker(variables: dict[str, str], printing_seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "taskharbor",
            "worker",
            "tasks:harbor",
            "--lease",
            "2s",
            "--sweep-every",
            "200ms",
        ],
        cwd=FOLDER,
        env={**environment(), **variables, "PRINTING_SECONDS": str(printing_seconds)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def log_in(site: Site, name: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=site.url, timeout=60) as http:
        assert http.post("/login", json={"name": name, "password": name}).status_code == 204
        yield http


def test_every_order_gets_one_invoice_whatever_is_killed(variables: dict[str, str]) -> None:
    with service(variables) as site, log_in(site, "bob") as bob, log_in(site, "ann") as ann:
        assert [http.get("/jobs/api/jobs").status_code for http in (site.http, bob, ann)] == [401, 403, 200]
        placed = [bob.post("/orders", json={"amount": 120 + n}).json() for n in range(3)]
        assert bob.post("/orders", json={"amount": -1}).status_code == 422
        first = f"/jobs/api/jobs/{placed[0]['job']}"
        with worker(variables, printing_seconds=600) as frozen:
            eventually(lambda: ann.get(first).json()["state"] == "running")
            frozen.send_signal(signal.SIGKILL)
            frozen.wait()
        os.killpg(site.process.pid, signal.SIGKILL)

    with (
        service(variables) as site,
        worker(variables, printing_seconds=0.1),
        log_in(site, "bob") as bob,
        log_in(site, "ann") as ann,
    ):
        for n, one in enumerate(placed):
            ended = ann.get(f"/jobs/api/jobs/{one['job']}/result?wait_s=60").json()
            order = bob.get(f"/orders/{one['order']}").json()
            assert ended["state"] == "completed"
            assert float(order["invoiced"]) == pytest.approx((120 + n) * 1.2)
        assert ann.get(first).json()["stalls"] == 1
        assert ann.get(f"/orders/{placed[0]['order']}").status_code == 404
        page = ann.get("/jobs/", follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/jobs/ui/")
        assert site.terminate() in (0, -15)

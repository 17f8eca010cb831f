"""A Django project on its own database: trial cases, commands, a killed worker, the dashboard for staff.

Settings are global in a process, so the project (`django_site`) runs in processes of its own, with the family
of Tasks that this Python has: `django.tasks` from Django 6 on, else the back-port. `tools/django_versions.py`
runs this file with other versions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx2
import psycopg
import pytest

from taskharbor.drivers import connect
from taskharbor.testing.servers import postgres_url
from tests.integration.frameworks.sites import Site, environment, eventually, serving

SITE = Path(__file__).parent / "django_site"
SERVER = ("uvicorn", "site_asgi:application", "--host", "127.0.0.1", "--port", "0")

START = """
from importlib import import_module
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.core.management import call_command
from shop import tasks
call_command("migrate", verbosity=0)
print(tasks.slow.enqueue("NOTES").id)
for name in ("staff", "user"):
    user = User.objects.create_user(name, is_staff=name == "staff", is_superuser=name == "staff")
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    print(session.session_key)
"""


@dataclass(frozen=True)
class Project:
    """The project on one database."""

    database: str
    variables: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error::DeprecationWarning", "manage.py", *words],
            cwd=SITE,
            env={**environment(), **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def manage(self, *words: str, code: int = 0) -> tuple[str, str]:
        """What `manage.py WORDS` printed on stdout and stderr."""
        process = self.start(*words)
        output = process.communicate(timeout=250)
        assert process.returncode == code, "\n".join(output)
        return output


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('site') / 'site.db'}"
        yield Project("sqlite", {"TEST_DATABASE": url})
        return
    name = f"site_{uuid4().hex[:8]}"
    server = postgres_url()
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        parts = psycopg.conninfo.conninfo_to_dict(server)
        host = f"{parts.get('user', '')}@{parts.get('host', '')}:{parts.get('port', 5432)}"
        if str(parts.get("host", "")).startswith("/"):
            host = f"{parts.get('user', '')}@"
        query = f"?host={parts['host']}&port={parts.get('port', 5432)}" if host.endswith("@") else ""
        url = f"postgresql://{host}/{name}{query}"
        variables = {"TEST_DATABASE": url, "TEST_DATABASE_NAME": f"test_{name}"}
        variables["PGPASSWORD"] = str(parts.get("password") or "")
        yield Project("postgres", variables)
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.mark.timeout(300)
def test_the_trial_cases(project: Project) -> None:
    """The test database is made, used and dropped, so no connection of ours is left."""
    _, output = project.manage("test", "shop.cases", "--noinput")

    assert "\nOK" in output
    if project.database == "postgres":
        with psycopg.connect(postgres_url()) as connection:
            name = project.variables["TEST_DATABASE_NAME"]
            left = connection.execute("select 1 from pg_database where datname = %s", [name]).fetchall()
        assert left == []


@pytest.mark.timeout(300)
def test_a_killed_worker_loses_no_task_and_the_dashboard_is_for_staff(
    project: Project, tmp_path: Path
) -> None:
    """One project, migrated once: `manage.py taskharbor worker` is killed and the next one takes over."""
    notes = tmp_path / "pids"
    output, _ = project.manage("shell", "-c", START.replace("NOTES", str(notes)))
    job, staff, user = output.split()[-3:]
    with project.start("taskharbor", "worker", "--lease", "1s", "--backend", "default") as worker:
        pid = int(eventually(lambda: (notes.exists() and notes.read_text().strip()) or None))
        os.kill(pid, signal.SIGKILL)
        worker.wait(60)
        assert pid == worker.pid
    with serving(SITE, *SERVER, **project.variables) as site:

        def has_run_again() -> bool:
            """There is nothing to run as long as the lease of the killed worker lasts."""
            with project.start("taskharbor", "worker", "--lease", "2s", "--until-idle") as worker:
                assert worker.wait(100) == 0
            return len(notes.read_text().split()) == 2

        eventually(has_run_again)
        check_the_dashboard(site, job, staff, user)


def check_the_dashboard(site: Site, job: str, staff: str, user: str) -> None:
    def get(path: str, session: str = "", **headers: str) -> httpx2.Response:
        cookies = {"cookie": f"sessionid={session}"} if session else {}
        return site.http.get(f"/jobs{path}", headers={**cookies, **headers}, follow_redirects=True)

    shown = get(f"/api/jobs/{job}", staff).json()
    cross = {"cookie": f"sessionid={staff}", "origin": "https://evil.example"}
    refused = site.http.post("/jobs/api/queues/mail/pause", headers=cross)
    assert (shown["state"], shown["starts"], shown["stalls"]) == ("completed", 2, 1)
    assert [get("/api/queues", who).status_code for who in ("", user, staff)] == [401, 403, 200]
    assert refused.status_code == 403
    assert get("/", staff).url.path == "/jobs/ui/"
    page = site.http.get("/admin/taskharbor/job/", headers={"cookie": f"sessionid={staff}"}).text
    assert '<a href="/jobs/">dashboard</a>' in page


def test_every_migration_of_ours_has_one_of_django() -> None:
    root = Path(__file__).parents[3] / "src/taskharbor/integrations/django/migrations"
    wrapped = sorted(int(path.stem[:4]) for path in root.glob("0*.py"))
    ours: set[int] = set()
    for url in ("sqlite:///jobs.db", "postgresql://localhost/jobs"):
        names = [name for name, _ in connect(url).migration_scripts()]
        ours |= {int(name[:4]) for name in names if name[:4].isdigit() and name[:4] != "0000"}
    assert sorted(ours) == wrapped

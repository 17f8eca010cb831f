"""Flask: application factories, `flask taskharbor`, contexts in every executor, and a server that forks."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError
from taskharbor.integrations.flask import FlaskHarbor
from taskharbor.testing import in_memory
from taskharbor.testing.servers.postgres import fresh_postgres_url
from tests.integration.frameworks.sites import environment, eventually, serving

SHOP = """
import os
from flask import Flask, current_app, g
from taskharbor.integrations.flask import FlaskHarbor

harbor = FlaskHarbor()

def seen() -> list[str | bool]:
    is_new = "used" not in g
    g.used = True
    return [current_app.config["SHOP"], is_new]

@harbor.task
async def in_loop() -> list[str | bool]:
    return seen()

@harbor.task
def in_thread() -> list[str | bool]:
    return seen()

@harbor.task(run_in="process")
def in_process() -> list[str | bool]:
    return seen()

def create_app() -> Flask:
    app = Flask("shop")
    app.config["SHOP"] = "books"
    app.config.from_mapping(TASKHARBOR_URL=os.environ["SHOP_URL"])
    harbor.init_app(app)

    @app.post("/")
    def enqueue() -> list[object]:
        return [os.getpid(), in_thread.enqueue().id]

    return app
"""


LONGER = pytest.mark.more("starts several processes, each of which imports Flask and its application")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the module `flask_shop`, which can be imported here, too."""
    (tmp_path / "flask_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/shop.db?durability=normal")
    yield tmp_path
    sys.modules.pop("flask_shop", None)


def flask(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "flask", "--app", "flask_shop:create_app", "taskharbor", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="one process"),
        pytest.param(("--processes", "2"), id="two processes", marks=LONGER),
    ],
)
def test_the_command_runs_jobs_in_a_context_of_the_application(folder: Path, flags: tuple[str, ...]) -> None:
    shop: Any = importlib.import_module("flask_shop")
    shop.create_app()
    jobs = [task.enqueue() for task in (shop.in_loop, shop.in_thread, shop.in_process) for _ in range(2)]

    flask(folder, "worker", "--until-idle", *flags)

    assert [job.result("30s") for job in jobs] == [["books", True]] * 6
    shop.harbor.close()


@LONGER
def test_the_other_commands_know_the_application_too(folder: Path) -> None:
    job = flask(folder, "enqueue", "in_thread").split()

    assert flask(folder, "jobs", "list", "-o", "ids").split() == job
    assert "Usage: taskharbor COMMAND" in flask(folder, "--help")


# ------------------------------------------------------------------ factories


def make_app(harbor: FlaskHarbor, url: str | None = "memory://") -> Flask:
    app = Flask("small")
    app.config["TASKHARBOR_URL"] = url
    harbor.init_app(app)
    return app


def test_a_factory_may_make_several_applications_of_one_store() -> None:
    harbor = FlaskHarbor()

    @harbor.task
    def name() -> str:
        return current_app.name

    with pytest.raises(ConfigurationError, match=r"call init_app\(app\) first"):
        name.enqueue()
    apps = [make_app(harbor), make_app(harbor)]

    assert [app.extensions["taskharbor"] for app in apps] == [harbor, harbor]
    with pytest.raises(ConfigurationError, match="a FlaskHarbor of its own"):
        make_app(harbor, "memory://another")
    job = name.enqueue()
    harbor.worker().run(until_idle=True)
    assert job.result() == "small"
    harbor.close()


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKHARBOR_URL", "memory://")
    harbor = FlaskHarbor(Flask("small"))

    assert harbor.url == "memory://"
    with pytest.raises(ConfigurationError, match="must be the URL of a store"):
        make_app(FlaskHarbor(), 7)  # type: ignore[arg-type]


def test_every_attempt_has_a_context_of_its_own_that_is_torn_down() -> None:
    harbor, ended = FlaskHarbor(), []
    app = make_app(harbor)
    app.teardown_appcontext(lambda error: ended.append((g.jobs, type(error))))

    @harbor.task
    def inner() -> None:
        g.jobs += 1

    @harbor.task
    async def of_loop() -> int:
        g.jobs = 1
        inner()  # a plain call shares the context
        return int(g.jobs)

    @harbor.task(max_attempts=1)
    def of_thread() -> None:
        g.jobs = 7
        raise LookupError("no luck")

    with app.app_context():  # as under `flask taskharbor worker`: attempts do not share it
        g.jobs = 0
        job, failed = of_loop.enqueue(), of_thread.enqueue()
        harbor.worker().run(until_idle=True)
        assert g.jobs == 0
        assert job.result() == 2
        assert failed.refresh().state == "failed"
        assert sorted(ended, key=str) == [(2, type(None)), (7, LookupError)]
    harbor.close()


def test_tests_give_the_harbor_a_store_in_memory() -> None:
    harbor = FlaskHarbor()

    @harbor.task
    def nothing() -> None: ...

    for _ in range(2):
        with in_memory(harbor):
            make_app(harbor, "sqlite:///must-not-be-used.db")
            nothing.enqueue()
    assert not harbor.is_attached
    nothing()
    assert not has_app_context()


def test_an_application_without_the_harbor_is_named(folder: Path) -> None:
    code = SHOP.replace("    harbor.init_app(app)\n", "")
    (folder / "flask_shop.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "taskharbor", "jobs", "list", "-A", "taskharbor.integrations.flask:harbor"],
        cwd=folder,
        env={**environment(), "FLASK_APP": "flask_shop:create_app"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "the Flask application 'shop' has no FlaskHarbor: call init_app(app)" in done.stderr


# ------------------------------------------------------------------ a server that forks


def test_workers_forked_after_the_application_was_used_have_connections_of_their_own(folder: Path) -> None:
    url = fresh_postgres_url()
    loaded = "from flask_shop import create_app, in_loop\napp = create_app()\nin_loop.enqueue()\n"
    (folder / "loaded.py").write_text(loaded)
    command = ("gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "loaded:app")
    answers: list[list[Any]] = []
    with serving(folder, *command, SHOP_URL=url) as site:

        def both_answered() -> bool:
            answers.append(site.http.post("/", headers={"Connection": "close"}).json())
            return len({pid for pid, _ in answers}) == 2

        eventually(both_answered, lambda: site.text)
        site.terminate()

    with Harbor(url) as harbor:
        found = {job.id for job in harbor.client.find().jobs}
    assert len(found) == len(answers) + 1
    assert {job for _, job in answers} < found

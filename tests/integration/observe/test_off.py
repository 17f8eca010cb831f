"""Who asks for nothing pays for nothing: no module of it is imported, and nobody listens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.cli.conftest import Command

_FOREIGN = ("prometheus_client", "opentelemetry", "structlog")
_PRINT_MODULES = f"""
found = [name for name in sys.modules if name.partition(".")[0] in {_FOREIGN!r}]
found += [name for name in sys.modules if name.startswith("taskharbor.observe.")]
print(*sorted(found))
"""


def imported(code: str, folder: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{_PRINT_MODULES}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()) if done.stdout.strip() else set()


def test_a_program_that_puts_jobs_in_and_runs_them_imports_nothing_of_it(tmp_path: Path) -> None:
    code = """
from taskharbor.harbor import Harbor
harbor = Harbor("memory://")

@harbor.task
async def send() -> None: ...

with harbor:
    send.enqueue()
    worker = harbor.worker(scheduler=False)
    worker.run(until_idle=True)
assert worker.events.heard == frozenset()
"""
    assert imported(code, tmp_path) == set()


def test_a_worker_without_a_port_imports_the_logs_alone(taskharbor: Command) -> None:
    taskharbor.put("send_welcome", queue="mail", payload=b'{"user_id": 1}')
    code = """
from taskharbor.cli.main import run
from taskharbor.events import AttemptsAnswered, AttemptWentWrong, DeadlineMissed, WorkerStopped, WorkflowEnded
assert run(["worker", "app:harbor", "--burst"]) == 0
import app
rare = {AttemptWentWrong, AttemptsAnswered, DeadlineMissed, WorkerStopped, WorkflowEnded}
assert app.harbor.events.heard == rare, 'a job that goes well costs no event of its own'
"""
    assert imported(code, taskharbor.folder) == {"taskharbor.observe.logs", "taskharbor.observe.plain_text"}


def test_without_the_library_the_command_names_what_to_install(taskharbor: Command, free_port: int) -> None:
    code = f"""
sys.modules["prometheus_client"] = None
from taskharbor.cli.main import run
assert run(["worker", "app:harbor", "--burst", "--metrics-port", "{free_port}"]) == 2
"""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        cwd=taskharbor.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "pip install 'taskharbor[prometheus]'" in done.stderr

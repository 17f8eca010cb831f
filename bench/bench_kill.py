"""What becomes of a job whose worker is killed with SIGKILL? One job each on six queues with their defaults.

    python bench/bench_kill.py [--seconds 400]

Each queue has its own database of one Valkey, and two workers: the first is killed while the job runs, with
its children, and the second starts at once. Each peer is installed into a folder of build/bench/kill. All
queues wait side by side: they sleep, so that they do not disturb each other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from results import table, write_section

from taskharbor.testing.servers.valkey import ValkeyServer

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "build" / "bench" / "kill"
JOB = """
import os, time
from pathlib import Path
URL = os.environ["STORE"]

def run():
    is_first = not Path("runs").exists()
    with Path("runs").open("a") as file:
        file.write(f"{time.time()}\\n")
    time.sleep(60 if is_first else 1)
"""


class Queue(NamedTuple):
    name: str
    packages: list[str]
    app: str
    worker: str
    enqueue: str


QUEUES = [
    Queue(
        "taskharbor",
        [],
        "from taskharbor import Harbor\nharbor = Harbor(URL)\njob = harbor.task(run)\n",
        "python -m taskharbor worker app:harbor -c 1",
        "app.job.enqueue()",
    ),
    Queue(
        "celery",
        ["celery[redis]"],
        "from celery import Celery\ncelery = Celery('app', broker=URL)\njob = celery.task(run, name='run')\n",
        "celery -A app:celery worker -c 1",
        "app.job.delay()",
    ),
    Queue(
        "rq",
        ["rq"],
        "from redis import Redis\nfrom rq import Queue\nqueue = Queue(connection=Redis.from_url(URL))\n",
        "rq worker --url $STORE",
        "app.queue.enqueue(app.run)",
    ),
    Queue(
        "dramatiq",
        ["dramatiq[redis]"],
        "import dramatiq\nfrom dramatiq.brokers.redis import RedisBroker\n"
        "dramatiq.set_broker(RedisBroker(url=URL))\njob = dramatiq.actor(run)\n",
        "dramatiq app --processes 1 --threads 1",
        "app.job.send()",
    ),
    Queue(
        "huey",
        ["huey", "redis"],
        "from huey import RedisHuey\nhuey = RedisHuey('app', url=URL)\njob = huey.task()(run)\n",
        "huey_consumer app.huey -w 1",
        "app.job()",
    ),
    Queue(
        "arq",
        ["arq"],
        "import asyncio\nfrom arq import create_pool\nfrom arq.connections import RedisSettings\n"
        "async def job(ctx):\n    await asyncio.to_thread(run)\n"
        "class WorkerSettings:\n    functions = [job]\n    redis_settings = RedisSettings.from_dsn(URL)\n"
        "async def send():\n"
        "    await (await create_pool(WorkerSettings.redis_settings)).enqueue_job('job')\n",
        "arq app.WorkerSettings",
        "app.asyncio.run(app.send())",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=400.0, help="how long to wait for the second run")
    seconds = parser.parse_args().seconds
    install()
    with tempfile.TemporaryDirectory() as folder, ValkeyServer() as server:
        rows = asyncio.run(all_of_them(Path(folder), server.url, seconds))
    body = (
        "One job that takes a minute. Its worker is killed with SIGKILL while it runs; another one starts "
        f"at once. Every queue has its default settings on Valkey. Watched for {seconds:g} s.\n\n"
    )
    write_section("The job of a killed worker", body + table(["queue", "runs again after"], rows))
    return 0


def install() -> None:
    """An environment for each: they want different versions of the same packages."""
    for queue in QUEUES:
        place = PEERS / queue.name
        if queue.packages and not (place / "installed").exists():
            venv.create(place, with_pip=True)
            subprocess.run([place / "bin" / "pip", "install", "-qq", *queue.packages], check=True)
            (place / "installed").touch()


async def all_of_them(folder: Path, url: str, seconds: float) -> list[list[str]]:
    root = url.rpartition("/")[0]
    found = await asyncio.gather(
        *(killed(one, folder / one.name, f"{root}/{number}", seconds) for number, one in enumerate(QUEUES))
    )
    return list(found)


async def killed(queue: Queue, folder: Path, store: str, seconds: float) -> list[str]:
    """How long after the kill the job ran again."""
    folder.mkdir()
    (folder / "app.py").write_text(JOB + queue.app)
    path = PEERS / queue.name / "bin" if queue.packages else Path(sys.executable).parent
    env = os.environ | {"STORE": store, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    enqueue = ["python", "-c", f"import app; {queue.enqueue}"]
    await asyncio.to_thread(subprocess.run, enqueue, cwd=folder, env=env, check=True)
    first = worker(queue, folder, env)
    await runs(folder, 1, 60.0)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    at = time.time()
    second = worker(queue, folder, env)
    try:
        again = await runs(folder, 2, seconds)
    finally:
        os.killpg(second.pid, signal.SIGKILL)
        second.wait()
    row = [
        f"{queue.name} {version(queue.name, path)}",
        f"{again - at:.0f} s" if again else f"not within {seconds:g} s",
    ]
    print("  ".join(row), flush=True)
    return row


def worker(queue: Queue, folder: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["sh", "-c", f"exec {queue.worker}"],
            cwd=folder,
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


async def runs(folder: Path, number: int, seconds: float) -> float | None:
    """When the job began for the n-th time; None if it does not."""
    deadline = time.monotonic() + seconds
    file = folder / "runs"
    while time.monotonic() < deadline:
        begun = file.read_text().split() if file.exists() else []
        if len(begun) >= number:
            return float(begun[number - 1])
        await asyncio.sleep(0.1)
    if number == 1:
        raise RuntimeError(f"the job did not start:\n{(folder / 'log').read_text()}")
    return None


def version(name: str, path: Path) -> str:
    places = [str(one) for one in (path.parent / "lib").glob("python*/site-packages")]
    return next((one.version for one in distributions(path=places) if one.name == name), "")


if __name__ == "__main__":
    sys.exit(main())

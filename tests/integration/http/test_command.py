"""`taskharbor server` and `taskharbor tokens` as they are installed, in processes of their own."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx2
import pytest

from tests.integration.http.api import GENEROUS_SECONDS

APP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///jobs.db")

@harbor.task(queue="mail", max_attempts=5)
async def send_welcome(user_id: int) -> str:
    return f"welcome, user {user_id}"

@harbor.cron(every="1s")
@harbor.task
async def tick() -> None: ...
"""


class Folder:
    """A folder with an app, and commands that run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "app.py").write_text(APP)
        self._servers: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")
        }

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "taskharbor", *args],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def serve(self, *args: str, inherited: tuple[int, ...] = ()) -> tuple[subprocess.Popen[str], str]:
        """A server on a free port, and its address, once it is ready."""
        process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor", "server", "--port", "0", *args],
            cwd=self.path,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )
        self._servers.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"serving on (http://[^\s\"]+)", line):
                self._read_on(process.stderr)
                return process, found[1]
        raise AssertionError("the server did not start")

    def _read_on(self, log: IO[str]) -> None:
        """A pipe that nobody reads fills up, and then the server stops."""
        reader = threading.Thread(target=log.read, daemon=True)
        reader.start()
        self._readers.append(reader)

    def close(self) -> None:
        for process in self._servers:
            if process.poll() is None:
                process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(GENEROUS_SECONDS)
        for process in self._servers:
            if process.stderr is not None:
                process.stderr.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    yield found
    found.close()


@pytest.mark.more("starts many processes")
def test_tokens_are_made_listed_and_revoked_and_obeyed(folder: Folder) -> None:
    made = folder.run("tokens", "create", "--role", "operator", "--note", "ann", "--json")
    narrow = folder.run("tokens", "create", "--role", "viewer", "-q", "mail", "--expires", "90d")
    listed = folder.run("tokens", "list", "--json")
    token, token_id = json.loads(made.stdout)["token"], json.loads(made.stdout)["id"]

    assert re.fullmatch(r"taskharbor_[0-9a-f]{12}_[0-9a-f]{64}\n", narrow.stdout)
    assert token not in listed.stdout
    assert [(one["role"], one["note"], one["queues"]) for one in json.loads(listed.stdout)["items"]] == [
        ("operator", "ann", None),
        ("viewer", "", ["mail"]),
    ]

    _, address = folder.serve("app:harbor", "--tokens", "taskharbor-tokens.json", "--host", "0.0.0.0")
    address = address.replace("0.0.0.0", "127.0.0.1")
    with httpx2.Client(
        base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=GENEROUS_SECONDS
    ) as caller:
        job = caller.post("/api/jobs", json={"type": "send_welcome", "payload": {"user_id": 7}})
        assert job.status_code == 201
        assert caller.get(f"/api/jobs/{job.json()['id']}").json()["queue"] == "mail"
        assert folder.run("tokens", "revoke", token_id).returncode == 0
        while caller.get("/api/jobs").status_code != 401:
            pass
    assert folder.run("tokens", "revoke", token_id).returncode == 3


@pytest.mark.parametrize("wrong", ["mail", "=60s", "mail=soon"])
def test_a_wait_target_that_makes_no_sense_is_refused(folder: Folder, wrong: str) -> None:
    done = folder.run("server", "--targets", f"sms=1h,{wrong}")

    assert done.returncode != 0
    assert "must look like mail=60s" in done.stderr or "is not a duration" in done.stderr


def test_the_settings_file_names_the_token_file_for_both_commands(folder: Folder) -> None:
    (folder.path / "taskharbor.toml").write_text('[server]\ntokens = "mine.json"\n')
    token = folder.run("tokens", "create", "--role", "viewer").stdout.strip()

    _, address = folder.serve("--url", "memory://")

    assert (folder.path / "mine.json").is_file()
    with httpx2.Client(base_url=address, timeout=GENEROUS_SECONDS) as caller:
        assert caller.get("/api/jobs").status_code == 401
        assert caller.get("/api/jobs", headers={"X-API-Key": token}).status_code == 200


def test_jobs_put_in_over_http_are_done_by_a_worker_and_schedules_fire(folder: Folder) -> None:
    process, address = folder.serve("app:harbor")
    with httpx2.Client(base_url=address, timeout=GENEROUS_SECONDS) as caller:
        job_id = caller.post("/api/jobs", json={"type": "send_welcome", "payload": [7]}).json()["id"]
        while not caller.get("/api/jobs?type=tick").json()["items"]:
            pass
        assert folder.run("worker", "app:harbor", "--burst").returncode == 0
        result = caller.get(f"/api/jobs/{job_id}/result?wait_s=30").json()
    process.send_signal(signal.SIGTERM)

    assert (result["state"], result["result"]) == ("completed", "welcome, user 7")
    assert process.wait(GENEROUS_SECONDS) == 0


def test_sigterm_with_an_open_stream_ends_with_code_zero(folder: Folder) -> None:
    process, address = folder.serve("--url", "memory://")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=GENEROUS_SECONDS) as caller:
        caller.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read = b""
        while b"snapshot" not in read:
            read += caller.recv(65536)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GENEROUS_SECONDS) == 0
        rest = b"".join(iter(lambda: caller.recv(65536), b""))
    assert rest.endswith(b"0\r\n\r\n")


def test_systemd_is_notified_when_the_server_is_ready_and_when_it_stops(folder: Folder) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder.path / "notify"))
        systemd.settimeout(GENEROUS_SECONDS)
        folder.environment["NOTIFY_SOCKET"] = str(folder.path / "notify")
        process, _ = folder.serve("--url", "memory://")
        assert systemd.recv(100) == b"READY=1"
        process.send_signal(signal.SIGINT)
        assert systemd.recv(100) == b"STOPPING=1"
        assert process.wait(GENEROUS_SECONDS) == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--host", "0.0.0.0"), "only callers on this machine are served"),
        (("--tokens", "nowhere.json"), "does not exist"),
        (("--tokens", "open.json"), "other users can write"),
        (("--tokens", "broken.json"), "is not valid"),
        (("--fd", "0"), "cannot listen on --fd 0"),
        (("--fd", "999"), "cannot listen on --fd 999: Bad file descriptor"),
        (("--host", "no.such.host.invalid", "--tokens", "good.json"), "cannot listen on"),
    ],
)
def test_a_server_that_must_not_start_says_why(folder: Folder, args: tuple[str, ...], words: str) -> None:
    folder.run("tokens", "create", "--role", "admin", "--tokens", "good.json")
    for name, content, mode in (("open.json", '{"tokens":[]}', 0o666), ("broken.json", "{", 0o600)):
        (folder.path / name).write_text(content)
        (folder.path / name).chmod(mode)

    done = folder.run("server", "--url", "memory://", "--port", "0", *args)

    assert done.returncode == 2
    assert words in done.stderr


def test_a_server_listens_on_the_socket_that_its_parent_holds(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number, port = listener.fileno(), listener.getsockname()[1]

        process, address = folder.serve("--url", "memory://", "--fd", str(number), inherited=(number,))

        assert address == f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{address}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(GENEROUS_SECONDS) == 0


def test_an_open_socket_that_others_reach_is_refused_without_tokens(folder: Folder) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        number = listener.fileno()
        done = subprocess.run(
            [sys.executable, "-m", "taskharbor", "server", "--url", "memory://", "--fd", str(number)],
            cwd=folder.path, env=folder.environment, capture_output=True, text=True, timeout=60,
            pass_fds=(number,), check=False,
        )  # fmt: skip

    assert done.returncode == 2
    assert "only callers on this machine are served" in done.stderr

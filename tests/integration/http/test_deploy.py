"""The files under deploy/ are started: what they say is run here, with the paths of this machine."""

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from taskharbor import Harbor, JobRequest
from taskharbor.drivers.messages import Query
from taskharbor.testing.servers import free_port
from tests.integration.http.api import GENEROUS_SECONDS, make_token, token_file
from tests.integration.http.test_command import Folder

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = ("server.yaml", "worker.yaml", "keda.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    found.environment["TASKHARBOR_URL"] = "sqlite:///jobs.db"
    make_token(token_file(tmp_path), "admin")
    yield found
    found.close()


def put_job(folder: Folder) -> None:
    with Harbor(f"sqlite:///{folder.path}/jobs.db") as harbor:
        harbor.client.enqueue(JobRequest(type="send_welcome", payload={"user_id": 7}, queue="mail"))


def states(folder: Folder) -> list[str]:
    with Harbor(f"sqlite:///{folder.path}/jobs.db") as harbor:
        return [job.state.value for job in harbor.client.find(Query(type="send_welcome")).jobs]


def manifest(name: str, kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    return next(one for one in documents if one["kind"] == kind)


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(name, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found


def seconds(text: str) -> int:
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


# ------------------------------------------------------------------ systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        lines = [line for line in unit.read_text().splitlines() if line and line[0] not in "#["]
        assert all(re.fullmatch(r"[A-Za-z]+=.*", line) for line in lines)
        return
    here = unit.read_text().replace("/srv/taskharbor/venv/bin/taskharbor", "/bin/true")
    here = here.replace("/srv/taskharbor", str(tmp_path)).replace("User=taskharbor", "User=root")
    (tmp_path / unit.name.replace("@.", "@mail.")).write_text(here)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / unit.name.replace("@.", "@mail.")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def started_from(unit: str) -> list[str]:
    """The arguments of the unit's command."""
    [line] = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "systemd" / unit).read_text(), flags=re.MULTILINE)
    command = shlex.split(line.replace("%i", "mail"))
    assert Path(command[0]).name == "taskharbor"
    return command[1:]


def test_the_server_of_the_unit_starts_notifies_systemd_and_stops(folder: Folder) -> None:
    args = started_from("taskharbor-server.service")
    args[args.index("--port") + 1] = "0"
    args[args.index("--tokens") + 1] = "tokens.json"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder.path / "notify"))
        systemd.settimeout(60)
        folder.environment["NOTIFY_SOCKET"] = str(folder.path / "notify")
        process, _ = folder.serve(*args[1:])
        assert systemd.recv(100) == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_worker_of_the_unit_does_a_job_and_stops(folder: Folder) -> None:
    args = started_from("taskharbor-worker@.service")
    put_job(folder)
    done = folder.run(*args, "--burst")

    assert done.returncode == 0, done.stderr
    assert states(folder) == ["completed"]


@pytest.mark.parametrize(
    ("unit", "grace"), [("taskharbor-server.service", "30s"), ("taskharbor-worker@.service", "5m")]
)
def test_systemd_waits_longer_than_the_grace(unit: str, grace: str) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    option = re.search(r"--grace (\S+)", text)

    assert (option[1] if option else "30s") == grace
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)[0]) > seconds(grace)


# ------------------------------------------------------------------ Kubernetes


def test_the_server_of_the_manifest_answers_its_probes_and_the_scaler(folder: Folder) -> None:
    wanted = container("server.yaml")
    args = [one.replace("/etc/taskharbor/", "").replace("--port=8484", "--port=0") for one in wanted["args"]]
    scaler = manifest("keda.yaml", "ScaledObject")["spec"]["triggers"][0]["metadata"]
    token = make_token(token_file(folder.path), "viewer", ("mail",))
    put_job(folder)

    _, address = folder.serve(*args[1:])
    address = address.replace("0.0.0.0", "127.0.0.1")
    with httpx2.Client(base_url=address, timeout=GENEROUS_SECONDS) as caller:
        for probe in ("livenessProbe", "readinessProbe"):
            assert caller.get(wanted[probe]["httpGet"]["path"]).status_code == 200
        path = scaler["url"].removeprefix("http://taskharbor-server:8484")
        answer = caller.get(path, headers={"Authorization": f"Bearer {token}"})

    assert args[0] == "server"
    assert wanted["ports"][0]["containerPort"] == 8484
    assert answer.json()[scaler["valueLocation"]] == 1
    assert scaler["authMode"] == "bearer"


def test_the_worker_of_the_manifest_answers_its_probes_and_does_a_job(folder: Folder) -> None:
    wanted = container("worker.yaml")
    port = free_port()
    put_job(folder)
    args = [re.sub(r"^--health-port=.*", f"--health-port={port}", one) for one in wanted["args"]]
    process = subprocess.Popen(
        [sys.executable, "-m", "taskharbor", *args],
        cwd=folder.path,
        env=folder.environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=GENEROUS_SECONDS) as caller:
            for kind in ("livenessProbe", "readinessProbe"):
                while not _is_fine(caller, wanted[kind]["httpGet"]["path"]):
                    assert process.poll() is None
        while states(folder) != ["completed"]:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _is_fine(caller: httpx2.Client, path: str) -> bool:
    try:
        return caller.get(path).status_code == 200
    except httpx2.TransportError:
        return False


def test_pods_are_given_longer_than_the_grace_and_names_fit_together() -> None:
    worker = manifest("worker.yaml", "Deployment")
    server = manifest("server.yaml", "Deployment")
    service = manifest("server.yaml", "Service")
    scaled = manifest("keda.yaml", "ScaledObject")
    [grace] = [
        one.partition("=")[2] for one in container("worker.yaml")["args"] if one.startswith("--grace=")
    ]

    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= seconds(grace) + 30
    assert server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 30 + 30
    assert scaled["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert service["spec"]["selector"].items() <= server["spec"]["template"]["metadata"]["labels"].items()
    authentication = manifest("keda.yaml", "TriggerAuthentication")
    assert scaled["spec"]["triggers"][0]["authenticationRef"]["name"] == authentication["metadata"]["name"]
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    assert kustomization["resources"] == list(MANIFESTS)

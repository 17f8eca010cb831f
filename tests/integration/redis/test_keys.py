"""What is written where: documented keys only, little memory, nothing left behind."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim
from taskharbor.drivers.redis.scripts import SCRIPTS
from taskharbor.model.bonds import Bonds
from taskharbor.model.job import NewJob, Note
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import Sample, WorkerReport
from taskharbor.model.queue import QueueSettings, Retention
from taskharbor.model.settlement import Ack, Fail, Park
from taskharbor.testing.conformance.kit import HOUR, START, enqueue_one, new_id, new_jobs, running, settle_one

ROOT = Path(__file__).parents[3]
LUA = ROOT / "src" / "taskharbor" / "drivers" / "redis" / "lua"
PAGE = (ROOT / "docs" / "reference" / "redis-keys.md").read_text()


def parts_of(client):
    """The keys by their last part, without namespace and queue."""
    keys = {key.decode() for key in client.keys("*")}
    return {re.sub(r"^\{[^}]*\}(:q:[^:]+)?:", "", key) for key in keys}


async def busy_harbor(driver):
    """A bit of everything that leaves a key."""
    rate = RateLimit(1000, HOUR)
    await driver.configure_queue(QueueSettings(queue="kit", enqueue_rate=rate, execute_rate=rate))
    await driver.configure_queue(QueueSettings(queue="*", enqueue_rate=rate, execute_rate=rate))
    await settle_one(driver, Ack((await running(driver, idempotency_key=b"once")).lease))
    await enqueue_one(driver, run_at=START + HOUR)
    cancelled, straggler = [await running(driver, lease_for=HOUR) for _ in range(2)]
    await driver.speculate(straggler.id, now=START)
    await driver.cancel([cancelled.id], now=START)
    await driver.enqueue(new_jobs(1), now=START)
    claim = Claim(queues=("kit",), worker_id="worker-c", rate=rate, lease_for=HOUR)
    await driver.reserve(claim, now=START)
    await driver.enqueue(new_jobs(1), now=START)
    family = Bonds(done_by="children", within=HOUR)
    parent = NewJob(id=new_id(), type="kit.group", queue="kit", bonds=family)
    child = NewJob(id=new_id(), type="kit.job", queue="kit", bonds=Bonds(parent=parent.id))
    await driver.enqueue([parent, child], now=START)
    report = WorkerReport(worker_id="worker-a")
    await driver.report_worker(report, [Sample("kit.job", timedelta(seconds=1))], now=START)
    await driver.hold_role("leader", "worker-a", HOUR, now=START)


async def test_every_key_is_on_the_page(own_server, admin):
    async with connect(own_server.url) as driver:
        await busy_harbor(driver)

    found = {re.sub(r"(rate:worker|inbox):.*", r"\1:", part) for part in parts_of(admin)}

    assert {"data", "queues", "list", "ready", "later", "leases", "done", "copies", "inbox:"} <= found
    assert {"relatives", "deadlines"} <= found
    assert [part for part in found if f"`{part}" not in PAGE] == []


async def test_forgotten_jobs_leave_no_key_behind_but_the_books(own_server, admin):
    async with connect(own_server.url) as driver:
        keep = Retention(completed=timedelta(0), failed=timedelta(0), cancelled=timedelta(0))
        await driver.configure_queue(QueueSettings(queue="*", retention=keep))
        await settle_one(driver, Ack((await running(driver)).lease, b"result"))
        await settle_one(driver, Fail((await running(driver, key=b"key")).lease, "broken"))

    assert parts_of(admin) <= {"data", "queues", "look-from", "configured", "wake"}
    fields = {field[:1] for field in admin.hkeys("{taskharbor}:data")}
    assert fields <= {b"e", b"n", b"Q", b"R"}


async def test_a_pruned_family_leaves_nothing_behind(own_server, admin):
    """Children, events, edges, a Park, notes, a deadline and consequences that were owed."""
    async with connect(own_server.url) as driver:
        taken = await running(driver, lease_for=HOUR)
        children = [NewJob(id=new_id(), type="kit.job", bonds=Bonds(parent=taken.id)) for _ in range(150)]
        last = Bonds(parent=taken.id, after=(children[0].id,), when="over", within=HOUR)
        event = Bonds(parent=taken.id, done_by="call", optional=True)
        more = [NewJob(id=new_id(), type="kit.job", bonds=bonds) for bonds in (last, event)]
        await driver.enqueue([*children, *more], by=taken.lease, now=START)
        notes = (Note("step", b"done"),)
        await settle_one(driver, Park(taken.lease, after=(children[0].id,), notes=notes))
        await driver.cancel([taken.id], now=START)
        await driver.cancel([taken.id], now=START)
        while (await driver.promote(now=START)).count:
            pass
        later = START + timedelta(days=30)
        assert await driver.prune(100, now=later) == 100
        assert await driver.prune(100, now=later) == 53

    assert parts_of(admin) <= {"data", "queues", "look-from", "wake"}
    fields = {field[:1] for field in admin.hkeys("{taskharbor}:data")}
    assert fields <= {b"e", b"n", b"Q", b"W"}


@pytest.mark.parametrize("name", sorted(path.stem for path in LUA.glob("*.lua")))
def test_a_script_touches_only_keys_that_it_was_given(name):
    """Every key of a call is one of KEYS, or a variable that was made from one."""
    text = "\n".join(line.partition("--")[0] for line in (LUA / f"{name}.lua").read_text().splitlines())
    keys = re.findall(r"\bcall\('[A-Z]+', ([^,)]+(?:\([^)]*\))?)", text)
    allowed = (
        r"KEYS\[.*|data|mark|key_of\(.*|key|list|done|ready|lines|later|leases|budget\[1\]|.*KEYS.*"
        r"|source\.(?:leases|done|list)|ends|instants|cells|relatives"
    )

    assert keys or name in (
        "get",
        "ring",
        "story",
    )  # they hand KEYS to functions of the common part, or call nothing
    assert [key for key in keys if not re.fullmatch(allowed, key)] == []


def test_no_script_formats_a_number_with_an_exponent():
    for path in LUA.glob("*.lua"):
        assert "tostring(" not in path.read_text()
        assert "%g" not in path.read_text()


def plain_job(payload: bytes) -> NewJob:
    return NewJob(id=new_id(), type="mail.welcome", payload=payload, queue="mail", max_stalls=3)


async def test_a_plain_waiting_job_takes_less_than_400_bytes_beyond_its_payload(own_server, admin, capsys):
    jobs, size = 5000, 100
    async with connect(own_server.url) as driver:
        for _ in range(jobs // 1000):
            await driver.enqueue([plain_job(b"x" * size) for _ in range(1000)], now=START)
    used = sum(admin.memory_usage(key, samples=0) for key in admin.keys("*"))

    beyond = used / jobs - size
    with capsys.disabled():
        print(f"\na plain waiting job: {beyond:.0f} bytes beyond its payload")
    assert beyond < 400


def test_the_shebang_keeps_ends_possible_when_the_server_is_full():
    for name, script in SCRIPTS.items():
        adds = name.startswith("enqueue") or name == "write_log"
        assert script.source.startswith("#!lua\n" if adds else "#!lua flags=allow-oom")


async def test_namespaces_share_a_server_and_nothing_else(own_server):
    async with connect(own_server.url) as one, connect(f"{own_server.url}?namespace=other") as other:
        job = await running(one)
        assert await other.get([job.id], now=START) == [None]
        assert await other.count(now=START) == {}
        with redis.Redis.from_url(own_server.url) as client:
            tags = {key.decode().partition("}")[0] for key in client.keys("*")}
    assert tags == {"{taskharbor", "{other"}

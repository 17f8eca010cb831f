"""Script in every field that a job, a worker, a schedule or an error can carry stays text on every page."""

import asyncio
import json

import pytest
from playwright.sync_api import expect

from taskharbor.drivers.messages import Claim
from taskharbor.harbor import Harbor
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob, Progress
from taskharbor.model.log_cells import CauseNumbers
from taskharbor.model.logbook import CAUSES
from taskharbor.model.presence import GpuUse, WorkerReport
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.settlement import Ack, Fail
from taskharbor.web.app import create_app
from taskharbor.web.config import ServerConfig
from tests.browser.conftest import TokenServer
from tests.browser.observed import Writer
from tests.browser.steps import calm, go, sign_in
from tests.integration.http.api import make_token, served, token_file

CAUSE = "0123456789abcdef"
SCRIPT = "<img src=x onerror=\"window.struck='FIELD'\"><script>window.struck='FIELD'</script>${1}'\"`"
URL = "javascript:window.struck='FIELD'"


def script(field):
    return SCRIPT.replace("FIELD", field)


async def fill(url):
    """Jobs whose every free text is a script; names of queues, types and workers cannot be."""
    harbor, entropy, now = Harbor(url), Entropy(3), SystemClock().now()
    try:
        driver = await harbor.client.adriver()
        jobs = [
            NewJob(
                id=entropy.job_id(now),
                type="strike",
                queue="mail",
                key=f"{script('key')}{number}".encode(),
                idempotency_key=f"{script('idempotency')}{number}".encode(),
                payload=json.dumps({script("name"): script("value"), "link": URL}).encode(),
                headers={"tags": script("tag"), "traceparent": f"00-{script('trace')}-1-1", "x": URL},
            )
            for number in range(4)
        ]
        await driver.enqueue(jobs)
        claim = Claim(queues=("mail",), worker_id="web-1", limit=3)
        failed, done, running = (await driver.reserve(claim)).jobs
        frame = f'  File "{script("file")}", line 1, in {script("function")}\n    x'
        trace = f"Traceback:\n{frame}\n{script('error')}"
        await driver.settle([Fail(failed.lease, script("reason"), "error", trace=trace)])
        await driver.settle([Ack(done.lease, json.dumps(script("result")).encode())])
        await driver.extend_leases(
            [running.lease], claim.lease_for, progress={running.id: Progress(0.5, script("progress")[:90])}
        )
        await driver.report_worker(
            WorkerReport(
                worker_id="web-1",
                name=script("worker")[:90],
                host=script("host")[:90],
                labels={"note": script("label")[:90]},
                concurrency=1,
                release=script("release")[:60],
                gpus=(GpuUse(id=script("gpu")[:60], name=script("gpu name")[:90], job=running.id),),
            ),
            ttl=claim.lease_for * 100,
        )
        writer, began = Writer(driver, now), int(now.timestamp() * 1e6)
        row = CauseNumbers(
            CAUSE, "mail", "strike", script("title"), script("frame"), "error", 3, 1, began, began,
            failed.id, script("old release"), script("first release"),
        )  # fmt: skip
        await writer.write(CAUSES, now, "web-1", row)
        await driver.put_schedule(Schedule(name="strike", template=jobs[0], cron="* * * * *"))
        await driver.configure_queue(QueueSettings(queue="mail", max_running=3))
        return [failed.id, done.id, running.id]
    finally:
        await harbor.aclose()


@pytest.fixture(scope="module")
def struck(tmp_path_factory):
    """The address of a server with such a store, and the ids of three jobs."""
    store = f"sqlite:///{tmp_path_factory.mktemp('struck')}/jobs.db"
    ids = asyncio.run(fill(store))
    app = create_app(Harbor(store), ServerConfig(any_type=True), local_callers_are_admin=True)
    with served(app) as port:
        yield f"http://127.0.0.1:{port}/ui/#/", ids


def test_no_script_runs_on_any_page(pages, struck):
    url, ids = struck
    page = pages(url)
    calm(page)

    places = ["jobs", *(f"jobs/{one}" for one in ids), "failures", f"failures/{CAUSE}"]
    places += [f"failures?open={CAUSE}", "queues", "queues/mail", "workers", "workers/web-1"]
    places += ["schedules", "schedules/strike"]
    for place in [*places, "system", "system/audit", "system/tokens", f"jobs?q={SCRIPT.replace('#', '')}"]:
        page.evaluate("place => { location.hash = '#/' + place; }", place)
        page.wait_for_selector("main h1")
        page.wait_for_timeout(300)

    assert page.evaluate("window.struck ?? null") is None
    assert page.locator("main img, main script").count() == 0
    assert page.locator('a[href^="javascript"]').count() == 0
    pages.expect("422 /api/jobs", "422 /api/jobs/count")


def test_the_texts_are_shown_as_they_are(pages, struck):
    url, ids = struck
    page = pages(f"{url}jobs/{ids[0]}")

    page.locator(".trace em").wait_for()

    assert script("error") in page.locator(".trace").inner_text()
    assert script("key") in page.locator("aside").inner_text()


@pytest.mark.parametrize(
    ("place", "field"),
    [(f"failures/{CAUSE}", "title"), (f"failures/{CAUSE}", "frame"), ("workers/web-1", "gpu name")],
)
def test_the_texts_of_causes_and_workers_are_text(pages, struck, place, field):
    url, _ = struck
    page = pages(f"{url}{place}")

    expect(page.locator("main")).to_contain_text(script(field)[:40])


def test_the_note_of_a_token_is_text_in_the_list_in_the_rail_and_in_the_audit(pages, tmp_path):
    token = make_token(token_file(tmp_path), "admin", note=script("note"))
    app = create_app(Harbor("memory://"), ServerConfig(tokens=tmp_path / "tokens.json"))
    with served(app) as port:
        page = sign_in(pages, TokenServer(f"http://127.0.0.1:{port}/ui/", {"admin": token}), "admin")
        expect(page.locator(".rail .foot")).to_contain_text(script("note")[:20])
        go(page, "system/tokens")
        expect(page.locator("main")).to_contain_text(script("note")[:40])
        page.get_by_role("button", name="New token…").click()
        page.get_by_label("For", exact=True).fill(script("second"))
        page.get_by_role("button", name="Create").click()
        page.get_by_role("button", name="I have it").click()
        go(page, "system/audit")
        expect(page.locator("main")).to_contain_text(script("second")[:40])

        assert page.evaluate("window.struck ?? null") is None
        assert page.locator("main img, main script, .rail img").count() == 0

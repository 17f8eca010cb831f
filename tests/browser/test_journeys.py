"""What people come for, by keyboard alone: find why a job failed, retry, undo, pause a queue, search."""

import re

from playwright.sync_api import expect

from tests.browser.steps import calm, command


def failed_row(page, server, name):
    return page.locator(f'tr[data-id="{server.ids[name]}"]')


def test_from_the_overview_to_a_traceback(pages, server):
    page = pages(server.url)
    calm(page)

    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_selector(".jobs tbody tr")
    page.keyboard.press("/")
    page.keyboard.type("state:failed type:send_welcome ")
    expect(page.locator(".query .chip")).to_have_count(2)
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("section[aria-busy=false] .jobs tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    expect(page.locator(".trace em")).to_contain_text("TimeoutError: timed out")
    expect(page.locator(".trace .mine b").last).to_have_text("connect")
    assert "state%3Afailed" not in page.url


def test_keys_leave_the_rows_of_the_search_before_alone(pages, server):
    page = pages(server.at("jobs"))
    page.wait_for_selector(".jobs tbody tr")
    asked = []
    page.route(re.compile(r"/api/jobs\?.*q=state"), lambda route: asked.append(route))

    page.locator("#q").fill("state:failed type:send_welcome ")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.locator("section[aria-busy=true] .jobs tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.keyboard.press("x")
    expect(page.locator("section[aria-busy=true] .jobs tbody tr").first).to_be_visible()
    expect(page.locator(".jobs tr.on")).to_have_count(0)
    for route in asked:
        route.continue_()
    page.locator("section[aria-busy=false] .jobs tbody tr").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    expect(page.locator(".trace em")).to_contain_text("TimeoutError: timed out")


def test_words_that_come_faster_than_the_page_is_drawn_are_all_kept(pages, server):
    page = pages(server.at("jobs"))
    page.wait_for_selector(".jobs tbody tr")

    page.evaluate(
        """() => {
            for (const text of ["state:failed type:send_*", "queue:mail worker:w*"]) {
                const clipboardData = new DataTransfer();
                clipboardData.setData("text", text);
                const paste = new ClipboardEvent("paste", { clipboardData, bubbles: true });
                document.querySelector("#q").dispatchEvent(paste);
            }
        }"""
    )

    expect(page.locator(".query .chip")).to_have_text(
        ["state:failed", "type:send_*", "queue:mail", "worker:w*"]
    )


def test_one_retry_and_its_undo(pages, server):
    page = pages(server.at(f"jobs/{server.ids['failed-1']}"))

    page.keyboard.press("r")
    expect(page.get_by_role("status").filter(has_text="runs again")).to_be_visible()
    expect(page.locator(".st.pill").first).to_have_text("ready")
    page.keyboard.press("u")

    expect(page.locator(".toast")).to_contain_text("cancelled and did not run")
    expect(page.locator(".st.pill").first).to_have_text("cancelled")


def test_several_are_held_and_undone(pages, server):
    page = pages(server.at("jobs?q=state:failed+type:send_welcome"))
    page.locator(".jobs tbody tr").first.wait_for()

    for key in ("j", "x", "j", "j", "Shift+X"):
        page.keyboard.press(key)
    expect(page.locator(".bulk b")).to_have_text("3 selected")
    page.get_by_role("button", name="Retry", exact=True).press("Enter")
    expect(page.locator(".toast")).to_contain_text("Retrying 3 jobs in")
    page.keyboard.press("u")

    expect(page.locator(".toast")).to_contain_text("Undone: nothing was changed")
    expect(page.locator(".jobs .st.failed").first).to_be_visible()


def test_everything_that_matches_is_shown_before(pages, server):
    page = pages(server.at("jobs?q=state:failed+type:send_welcome"))
    page.locator(".jobs tbody tr").first.wait_for()

    page.locator(".jobs .tick").first.check()
    page.locator(".bulk .link").click()
    page.get_by_role("button", name="Delete…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(re.compile(r"Delete \d+ jobs\?"))
    expect(dialog.get_by_role("button", name="Save them first")).to_be_visible()
    page.keyboard.press("Escape")

    expect(dialog).to_have_count(0)


def test_a_queue_is_paused_from_the_palette_and_runs_again(pages, server):
    page = pages(server.url)
    calm(page)

    command(page, "pause images", "Pause queue images")
    expect(page.locator(".toast")).to_contain_text("Queue images is paused")
    expect(page.locator("#queues tr", has_text="images")).to_contain_text("paused")
    page.keyboard.press("u")

    expect(page.locator(".toast")).to_contain_text("Undone")
    expect(page.locator("#queues tr", has_text="images")).not_to_contain_text("paused")


def test_a_query_is_marked_where_it_is_wrong(pages, server):
    page = pages(server.at("jobs?q=state:failed+colour:red"))

    expect(page.locator(".chip.wrong")).to_contain_text("colour:red")
    expect(page.locator("#q-problem")).to_contain_text("'colour' is not a field; expected ")
    pages.expect("422 /api/jobs", "422 /api/jobs/count")


def test_the_attempt_that_a_job_is_at_is_counted(pages, server):
    page = pages(server.at("jobs"))
    attempts = {"failed": "2 of 3", "running": "1 of ∞", "completed-0": "1 of ∞", "ready": "0 of ∞"}

    for name, text in attempts.items():
        row = page.locator(f'tr[data-id="{server.ids[name]}"]')
        expect(row.locator("td.num.mid2").first).to_have_text(text)


def test_completion_knows_queues_and_states(pages, server):
    page = pages(server.at("jobs"))
    calm(page)

    page.keyboard.press("/")
    page.keyboard.type("queue:web")
    expect(page.locator("#suggestions li")).to_have_text(["queue:webhooks"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")

    expect(page.locator(".jobs tbody tr")).to_have_count(1)
    expect(page.locator(".jobs tbody tr")).to_contain_text("call_webhook")


def test_the_search_has_the_focus_before_the_next_key(pages, server):
    page = pages(server.at("jobs"))
    calm(page)

    focused = page.evaluate(
        """() => {
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }));
            return document.activeElement.id;
        }"""
    )

    assert focused == "q"


def test_commands_have_the_focus_before_the_next_key(pages, server):
    """A key too early would pause the page, or retry a job."""
    page = pages(server.url)
    calm(page)

    focused = page.evaluate(
        """async () => {
            const pressed = new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true });
            document.body.dispatchEvent(pressed);
            await Promise.resolve().then(() => {});  // the next key is an event of its own: later than this
            return document.activeElement.id;
        }"""
    )

    assert focused == "command"


def test_what_is_typed_on_the_way_to_the_search_does_nothing(pages, server):
    page = pages(server.url)
    calm(page)

    page.evaluate(
        """() => { for (const key of ["/", "p"])
            document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })); }"""
    )

    expect(page.locator("#q")).to_be_focused()
    expect(page.locator(".live")).not_to_contain_text("Paused")


def test_the_search_is_reached_from_another_page(pages, server):
    page = pages(server.at("queues"))
    calm(page)

    page.keyboard.press("/")

    expect(page.locator("#q")).to_be_focused()


def test_edit_and_retry_never_sends_back_what_was_hidden(pages, server):
    page = pages(server.at(f"jobs/{server.ids['failed-2']}"))

    page.keyboard.press("e")
    field = page.get_by_role("textbox", name="Arguments")
    field.fill('{"user_id": 2, "template": "farewell"')
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(page.get_by_role("dialog")).to_contain_text("This is not JSON")
    field.fill('{"user_id": 2, "template": "farewell"}')
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()

    expect(page.locator(".st.pill").first).to_have_text("ready")
    expect(page.locator(".json")).to_contain_text("farewell")


def test_a_new_job_with_a_delay_that_is_no_number_is_refused(pages, server):
    page = pages(server.at("jobs"))
    page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="Task", exact=True).fill("send_welcome")
    for delay in ("abc", "1e999"):
        dialog.get_by_role("textbox", name="Not before so many seconds").fill(delay)
        dialog.get_by_role("button", name="Enqueue").click()
        expect(dialog).to_contain_text("Give a number")
    dialog.get_by_role("textbox", name="Not before so many seconds").fill("3600")
    dialog.get_by_role("button", name="Enqueue").click()

    expect(page.locator(".toast")).to_contain_text("is in the queue")


def test_a_job_is_cancelled_after_its_hold(pages, server):
    page = pages(server.at(f"jobs/{server.ids['waiting-1']}"))

    page.keyboard.press("c")
    page.locator(".toast").get_by_role("button", name="Now").press("Enter")

    expect(page.locator(".toast")).to_contain_text("Cancelled 1 job")
    expect(page.locator(".st.pill").first).to_have_text("cancelled")


def test_copy_as(pages, server):
    page = pages(server.at(f"jobs/{server.ids['failed-3']}"))

    for name, begins in (
        ("Python", "send_welcome.enqueue(user_id=3"),
        ("CLI", "taskharbor enqueue send_welcome -q mail --payload '{"),
        ("curl", f"curl 'http://127.0.0.1:{server.port}/api/jobs' -H"),
    ):
        page.get_by_role("button", name="Copy as").click()
        page.get_by_role("menuitem", name=name).click()
        page.locator(".toast", has_text="Copied").last.wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith(begins)


def test_the_address_holds_what_is_shown(pages, server):
    page = pages(server.at("jobs?q=state:completed&sort=-ended"))
    page.locator(".jobs tbody tr").first.wait_for()

    page.keyboard.press("j")
    page.wait_for_url("**at=*")
    address = page.url
    again = pages(address)

    expect(again.locator(".query .chip")).to_contain_text("state:completed")
    expect(again.locator(".jobs tr.at")).to_have_count(1)


def test_single_keys_can_be_turned_off(pages, server):
    page = pages(server.at("more"))

    page.get_by_role("switch", name="Single keys").press("Space")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") is None
    page.get_by_role("switch", name="Single keys").press("Space")
    page.locator("h1").click()
    page.keyboard.press("t")

    assert page.evaluate("document.documentElement.dataset.theme") == "light"

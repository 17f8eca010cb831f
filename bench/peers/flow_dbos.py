"""DBOS on Postgres: a workflow that enqueues children and waits for all of them; steps of a workflow."""

import os
import threading

from dbos import DBOS, DBOSClient
from flow_base import URL, child_work, line_of, main, until_stored

SETTINGS = "queue polled every 50 ms, one executor id a worker, taken up again by its successor"
CONFIG = {
    "name": "flow",
    "system_database_url": URL,
    "log_level": "ERROR",
    "application_version": "flow",
    "executor_id": os.environ.get("TRIAL_SLOT", "0"),
}


def worker():
    DBOS(config=CONFIG)

    @DBOS.workflow(name="child")
    def child(run, number):
        return child_work(run, number)

    @DBOS.step()
    def fire(run):
        line_of(run, "callback")

    @DBOS.step()
    def link(run, number):
        line_of(run, f"child {number}")
        return number + 1

    @DBOS.workflow(name="group")
    def group(run, children):
        handles = [DBOS.enqueue_workflow("flow", child, run, number) for number in range(children)]
        for handle in handles:
            handle.get_result()
        fire(run)

    @DBOS.workflow(name="steps")
    def steps(run, count):
        for number in range(count):
            link(run, number)
        fire(run)

    DBOS.launch()
    DBOS.register_queue("flow", polling_interval_sec=0.05)
    DBOS.register_queue("parents", polling_interval_sec=0.05)
    threading.Event().wait()


def start(name):
    def enqueue(run, count):
        client = DBOSClient(system_database_url=URL)
        client.enqueue({"queue_name": "parents", "workflow_name": name, "app_version": "flow"}, run, count)
        client.destroy()

    return lambda run, count: until_stored(lambda: enqueue(run, count))


if __name__ == "__main__":
    main(worker, group=start("group"), steps=start("steps"))

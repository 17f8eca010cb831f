"""Absurd on Postgres: a task that spawns children and waits for all of them; steps of a task."""

import os
import threading

import absurdctl
import psycopg
from absurd_sdk import Absurd
from flow_base import URL, child_work, line_of, main, until_stored

SETTINGS = "8 threads, polled every 50 ms, claims of 5 s, parents and children in queues of their own"


def worker():
    parents = Absurd(URL, queue_name="parents", default_max_attempts=50)
    children = Absurd(URL, queue_name="children", default_max_attempts=50)
    spawner = Absurd(URL, queue_name="children", default_max_attempts=50)

    @children.register_task("child")
    def child(wanted, ctx):
        return child_work(wanted["run"], wanted["number"])

    @parents.register_task("group")
    def group(wanted, ctx):
        run = wanted["run"]

        def spawn():
            spawned = []
            for number in range(wanted["count"]):
                if number % 100 == 0:
                    ctx.heartbeat()
                key, its = f"{run}-{number}", {"run": run, "number": number}
                answer = spawner.spawn("child", its, queue="children", idempotency_key=key)
                spawned.append(str(answer["task_id"]))
            return spawned

        for task in ctx.step("spawn", spawn):
            ctx.await_task_result(task, queue_name="children")
        ctx.step("callback", lambda: line_of(run, "callback"))

    @parents.register_task("steps")
    def steps(wanted, ctx):
        run = wanted["run"]
        for number in range(wanted["count"]):
            ctx.step(f"step {number}", lambda number=number: line_of(run, f"child {number}"))
        ctx.step("callback", lambda: line_of(run, "callback"))

    threading.Thread(target=serve, args=(parents, 2)).start()
    serve(children, 8)


def serve(app, threads):
    """Until the store goes: then the whole process ends, and another takes its place."""
    try:
        app.start_worker(claim_timeout=5, concurrency=threads, poll_interval=0.05)
    finally:
        os._exit(1)


def start(name):
    def spawn(run, count):
        app = Absurd(URL, queue_name="parents", default_max_attempts=50)
        key = f"{name}-{run}"
        app.spawn(name, {"run": run, "count": count}, queue="parents", idempotency_key=key)
        app.close()

    return lambda run, count: until_stored(lambda: spawn(run, count))


def prepare():
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    for queue in ("parents", "children"):
        Absurd(URL, queue_name=queue).create_queue()


if __name__ == "__main__":
    main(worker, prepare=prepare, group=start("group"), steps=start("steps"))

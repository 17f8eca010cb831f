"""RQ: a job that depends on all others; a chain of dependencies."""

from flow_base import BEFORE, URL, exec_worker, line_of, main
from redis import Redis
from rq import Queue, Retry

SETTINGS = "SimpleWorker, depends_on, Retry(max=10), maintenance every 5 s, timeout 5 s"
OPTIONS = {"retry": Retry(max=10), "result_ttl": 600}


def callback(run):
    line_of(run, "callback")


def link(run, number):
    line_of(run, f"child {number}")
    return number + 1


def queue():
    return Queue("flow", connection=Redis.from_url(URL), default_timeout=5)


def group(run, children):
    there = queue()
    made = [
        there.prepare_data("flow_base.child_work", args=(run, number), timeout=5, **OPTIONS)
        for number in range(children)
    ]
    there.enqueue("flow_rq.callback", run, depends_on=there.enqueue_many(made), **OPTIONS)


def links(run, count):
    there, last = queue(), None
    for number in range(count):
        last = there.enqueue("flow_rq.link", run, number, depends_on=last, **OPTIONS)
    there.enqueue("flow_rq.callback", run, depends_on=last, **OPTIONS)


def graphs(run, count):
    there = queue()
    for first in range(0, 9 * count, 9):
        made = []
        for number, before in enumerate(BEFORE):
            after = [made[one] for one in before]
            made.append(there.enqueue("flow_rq.link", run, first + number, depends_on=after, **OPTIONS))
        there.enqueue("flow_rq.callback", run, depends_on=made[-2:], **OPTIONS)


def left():
    there = queue()
    return there.count + there.started_job_registry.count + there.scheduled_job_registry.count


def worker():
    flags = ["--quiet", "--worker-class", "rq.worker.SimpleWorker", "--maintenance-interval", "5"]
    exec_worker("-m", "rq.cli", "worker", "-u", URL, *flags, "flow")


if __name__ == "__main__":
    main(worker, group=group, chain=links, graph=graphs, left=left)

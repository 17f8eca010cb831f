"""Celery's chord and chain on Redis: acks late, redelivered after the visibility timeout."""

from celery import Celery, chain, chord
from flow_base import URL, child_work, exec_worker, line_of, main
from redis import Redis

SETTINGS = "prefork -c 4, acks_late, reject_on_worker_lost, visibility timeout 5 s, results in Redis"
app = Celery("flow", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_transport_options={"visibility_timeout": 5, "unacked_mutex_expire": 5},
    result_backend_transport_options={"visibility_timeout": 5},
    worker_disable_rate_limits=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="child")
def child(run, number):
    return child_work(run, number)


@app.task(name="callback")
def callback(results, run):
    line_of(run, "callback")


@app.task(name="link")
def link(number, run):
    line_of(run, f"child {number}")
    return number + 1


def group(run, children):
    chord(child.s(run, number) for number in range(children))(callback.s(run))


def links(run, count):
    chain(link.s(0, run), *(link.s(run) for _ in range(count - 1)), callback.s(run))()


def left():
    redis = Redis.from_url(URL)
    return redis.llen("celery") + redis.hlen("unacked")


def worker():
    flags = ["-P", "prefork", "-c", "4", "-l", "ERROR", "--without-gossip", "--without-mingle"]
    exec_worker("-m", "celery", "-A", "flow_celery", "worker", *flags)


if __name__ == "__main__":
    main(worker, group=group, chain=links, left=left)

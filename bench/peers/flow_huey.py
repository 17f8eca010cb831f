"""Huey: its chord and its pipeline on Redis."""

from urllib.parse import urlsplit

from flow_base import URL, child_work, exec_worker, line_of, main
from huey import RedisHuey, chord

SETTINGS = "8 threads, chord and pipeline, results in Redis"
huey = RedisHuey("flow", host="127.0.0.1", port=urlsplit(URL).port)


@huey.task()
def child(run, number):
    return child_work(run, number)


@huey.task()
def callback(run, results):
    line_of(run, "callback")


@huey.task()
def link(run, number, *before):
    line_of(run, f"child {number}")
    return number + 1


def group(run, children):
    huey.enqueue(chord([child.s(run, number) for number in range(children)], callback.s(run)))


def links(run, count):
    pipeline = link.s(run, 0)
    for number in range(1, count):
        pipeline = pipeline.then(link, run, number)
    huey.enqueue(pipeline.then(callback, run))


def left():
    """What a worker holds is in no list: nobody takes it up when that worker dies."""
    return huey.pending_count() + huey.scheduled_count()


def worker():
    exec_worker("-m", "huey.bin.huey_consumer", "flow_huey.huey", "-q", "-k", "thread", "-w", "8")


if __name__ == "__main__":
    import flow_huey  # its tasks are known by the name of their module

    main(worker, group=flow_huey.group, chain=flow_huey.links, left=flow_huey.left)

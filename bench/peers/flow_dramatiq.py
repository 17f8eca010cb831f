"""Dramatiq: a group with a completion callback, a pipeline."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Limits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from flow_base import URL, child_work, exec_worker, line_of, main

SETTINGS = "1 process, 20 threads, GroupCallbacks and Results in Redis, heartbeat timeout 5 s"
broker = RedisBroker(url=URL, heartbeat_timeout=5000, maintenance_chance=100_000)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
broker.add_middleware(GroupCallbacks(Limits(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="child", store_results=True)
def child(run, number):
    return child_work(run, number)


@dramatiq.actor(actor_name="callback")
def callback(run):
    line_of(run, "callback")


@dramatiq.actor(actor_name="link", store_results=True)
def link(run, number, *before):
    line_of(run, f"child {number}")
    return number + 1


def group(run, children):
    members = dramatiq.group([child.message(run, number) for number in range(children)])
    members.add_completion_callback(callback.message(run))
    members.run()


def links(run, count):
    messages = [link.message(run, number) for number in range(count)]
    dramatiq.pipeline([*messages, callback.message_with_options(args=(run,), pipe_ignore=True)]).run()


def left():
    return sum(broker.client.hlen(f"dramatiq:default{kind}.msgs") for kind in ("", ".DQ"))


def worker():
    exec_worker("-m", "dramatiq", "flow_dramatiq", "-p", "1", "-t", "20")


if __name__ == "__main__":
    main(worker, group=group, chain=links, left=left)

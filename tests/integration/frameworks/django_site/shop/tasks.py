# mypy: ignore-errors
"""Tasks of the family that is installed."""

from __future__ import annotations

import os
import time

from django.conf import settings

from shop.models import Order
from taskharbor.integrations.django import job_options

if settings.HAS_TASKS:
    from django.tasks import task
else:
    from django_tasks import task

os_path = os.path  # what a job must not be able to call


@task
def add(a, b):
    return a + b


@task
async def wait_a_moment(text):
    return text.upper()


@task(queue_name="mail", priority=5)
def rename(order_id, name):
    Order.objects.filter(pk=order_id).update(name=name)
    return {"renamed": order_id, "as": [name]}


@task
def fail(text):
    raise ValueError(f"no\nroute to {text}")


@task
def return_an_object():
    return object()


@task(takes_context=True)
def attempts(context, least):
    if context.attempt < least:
        raise ValueError("not yet")
    return [context.attempt, context.task_result.id]


@task
@job_options(max_attempts=3, min_backoff="1ms", max_backoff="1ms", timeout="30s")
def flaky(order_id):
    order = Order.objects.get(pk=order_id)
    order.name += "!"
    order.save()
    if len(order.name) < 3:
        raise ConnectionError(order.name)
    return order.name


@task
@job_options(key=lambda order_id: f"order-{order_id}")
def keyed(order_id):
    return order_id


@task(backend="memory")
def elsewhere():
    return "here"


@task
@job_options(max_stalls=5)
def slow(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(2)
    return "done"

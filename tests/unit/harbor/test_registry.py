"""The tasks of one harbor, by name."""

import pytest

from taskharbor.client.task import Task
from taskharbor.errors import ConfigurationError, UnknownTask
from taskharbor.harbor.registry import TaskRegistry
from taskharbor.tasks import JobRequest


def one() -> None: ...


def two() -> None: ...


def task(function, name="same", queue="default") -> Task[..., None]:
    return Task(function, JobRequest(type=name, queue=queue))


def test_a_task_is_found_by_its_name():
    registry = TaskRegistry()
    registry.add(task(one, "one"))

    assert registry.get("one").function is one
    assert "one" in registry
    assert len(registry) == 1


def test_an_unknown_name_lists_those_that_exist():
    registry = TaskRegistry()
    registry.add(task(two, "two"))
    registry.add(task(one, "one"))

    with pytest.raises(UnknownTask, match="'three'; known: one, two"):
        registry.get("three")
    assert registry.find("three") is None


def test_two_functions_cannot_share_a_name():
    registry = TaskRegistry()
    registry.add(task(one))

    with pytest.raises(ConfigurationError, match=r"two tasks are named 'same': .*\.one and .*\.two"):
        registry.add(task(two))

    assert registry.get("same").function is one


def test_the_same_function_again_replaces_the_old_one():
    registry = TaskRegistry()
    registry.add(task(one))
    again = task(one, queue="mail")

    registry.add(again)

    assert registry.get("same") is again


def test_handlers_and_queues_follow_from_the_tasks():
    registry = TaskRegistry()
    registry.add(task(two, "two", "mail"))
    registry.add(task(one, "one"))

    assert [handler.type for handler in registry.handlers()] == ["one", "two"]
    assert registry.queues() == ("default", "mail")

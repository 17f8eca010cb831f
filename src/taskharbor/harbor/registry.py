"""TaskRegistry: the tasks of one harbor, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taskharbor.client.task import Task
from taskharbor.errors import ConfigurationError, UnknownTask
from taskharbor.tasks.handler import Handler

AnyTask = Task[Any, Any]


class TaskRegistry:
    """Names and their tasks: one name, one function."""

    def __init__(self) -> None:
        self._by_name: dict[str, AnyTask] = {}

    def add(self, task: AnyTask) -> None:
        """Take a task in. The same function again, as after a reload, replaces the old one.

        Raises:
            ConfigurationError: another function already has the name.
        """
        there = self._by_name.get(task.name)
        if there is not None and _place(there) != _place(task):
            raise ConfigurationError(
                f"two tasks are named {task.name!r}: {_place(there)} and {_place(task)}; "
                "give one of them another name="
            )
        self._by_name[task.name] = task

    def get(self, name: str) -> AnyTask:
        """The task of a name.

        Raises:
            UnknownTask: there is none; the message lists those that exist.
        """
        if name not in self._by_name:
            raise UnknownTask(name, tuple(sorted(self._by_name)))
        return self._by_name[name]

    def find(self, name: str) -> AnyTask | None:
        return self._by_name.get(name)

    def handlers(self) -> list[Handler]:
        return [task.handler for task in self]

    def queues(self) -> tuple[str, ...]:
        """Every queue that the tasks name, sorted."""
        return tuple(sorted({task.queue for task in self}))

    def __iter__(self) -> Iterator[AnyTask]:
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name


def _place(task: AnyTask) -> str:
    function = task.function
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"

"""The keywords that type checkers know are those that the code takes."""

import inspect
from dataclasses import fields

from taskharbor.harbor.decorator import TaskOptions
from taskharbor.harbor.harbor import Harbor
from taskharbor.harbor.keywords import (
    FailureTaskKeywords,
    HarborWorkerKeywords,
    QueueKeywords,
    RuleKeywords,
)
from taskharbor.harbor.worker import HarborWorker
from taskharbor.model.queue import QueueSettings
from taskharbor.model.schedule import Schedule
from taskharbor.model.worker_options import WorkerOptions
from taskharbor.worker.worker import Worker


def named(function: object) -> set[str]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}


def test_a_worker_of_a_harbor_takes_what_a_worker_takes():
    options = {field.name for field in fields(WorkerOptions)}
    taken = options | named(Worker.__init__) | named(HarborWorker.__init__)

    ours = {"driver", "schedules", "events"}
    assert HarborWorkerKeywords.__annotations__.keys() == taken - ours - named(Harbor.worker)


def test_a_queue_is_configured_by_the_names_of_its_settings():
    assert QueueKeywords.__annotations__.keys() == set(QueueSettings.__struct_fields__) - {"queue"}


def test_a_schedule_is_put_by_the_names_of_its_rule():
    ours = {"name", "template", "declared", "renews"}

    assert RuleKeywords.__annotations__.keys() == set(Schedule.__struct_fields__) - ours


def test_a_handler_of_failures_takes_the_options_of_a_task():
    assert FailureTaskKeywords.__annotations__.keys() == set(TaskOptions.__struct_fields__) - {
        "name",
        "queue",
    }

"""The options of a worker: checked when it is made, and the same list everywhere."""

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from taskharbor.drivers import connect
from taskharbor.errors import ConfigurationError
from taskharbor.model.worker_options import WorkerKeywords, WorkerOptions
from taskharbor.worker import Worker


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "\x1b[2J"}, "printable"),
        ({"name": "x" * 201}, "printable"),
        ({"labels": {"zone": "a\nb"}}, "printable"),
        ({"labels": {"zone": "x" * 1001}}, "printable"),
        ({"labels": {f"l{number}": "" for number in range(65)}}, "labels"),
        ({"report_every": timedelta(hours=7)}, "ttl"),
    ],
)
def test_what_cannot_be_reported_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        WorkerOptions(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": "10"}, "concurrency='10' must be a whole number"),
        ({"concurrency": 2.5}, "concurrency=2.5 must be a whole number"),
        ({"concurrency": None}, "concurrency=None must be a whole number"),
        ({"concurrency": 0}, "at least 1"),
        ({"prefetch": "3"}, "prefetch='3' must be a whole number"),
        ({"prefetch": -1}, "prefetch=-1 must not be negative"),
        ({"max_jobs": True}, "max_jobs=True must be a whole number"),
        ({"max_memory": "2GiB"}, "max_memory='2GiB' must be a whole number"),
        ({"grace": "30s"}, r"grace='30s' must be a timedelta, e.g. timedelta\(seconds=30\)"),
        ({"queues": 3}, "queues=3 must be a list of names"),
        ({"lanes": {"gpu": 1}}, "lanes={'gpu': 1} must be a list of names"),
        ({"kind": 3}, "kind 3 is not a name"),
        ({"queues": "mail"}, r"queues takes a list: queues=\['mail'\]"),
        ({"lanes": "gpu"}, r"lanes takes a list: lanes=\['gpu'\]"),
        ({"strict": "no"}, "strict='no' must be True or False"),
        ({"logbook": None}, "logbook=None must be True or False"),
        ({"retry": 3}, "RetryPolicy"),
        ({"kind": "gpu", "gpus": 3}, "gpus=3 must be 'all', or a list"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        WorkerOptions(**options)


def test_keywords_are_the_fields() -> None:
    by_position = {"queues", "concurrency", "kind"}
    assert WorkerKeywords.__annotations__.keys() == {one.name for one in fields(WorkerOptions)} - by_position


def test_keywords_go_over_the_options_and_spans_of_time_are_written_as_people_do() -> None:
    options = WorkerOptions(queues=("mail",), concurrency=3, lease=timedelta(seconds=60))

    worker = Worker(connect("memory://"), concurrency=4, options=options, grace="1m30s", poll=0.5)

    assert (worker.options.queues, worker.options.concurrency) == (("mail",), 4)
    assert worker.options.lease == timedelta(seconds=60)
    assert (worker.options.grace, worker.options.poll) == (timedelta(seconds=90), timedelta(seconds=0.5))


def test_without_any_it_has_the_defaults_and_a_name() -> None:
    worker = Worker(connect("memory://"))

    assert worker.options == WorkerOptions(queues=("default",), name=worker.options.name)
    assert worker.options.name


@pytest.mark.parametrize("key", ["queues", "lanes"])
def test_a_text_is_no_list(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{key} takes a list: {key}=\['mail'\]"):
        Worker(connect("memory://"), **{key: "mail"})  # type: ignore[arg-type]


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(TypeError, match="concurency"):
        Worker(connect("memory://"), concurency=3)  # type: ignore[call-arg]

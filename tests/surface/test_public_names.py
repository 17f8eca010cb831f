"""The names that users may rely on: listed once, loaded late, and none of them missing."""

import subprocess
import sys

import pytest

import taskharbor
import taskharbor.testing

# Adding a name here is a promise; taking one away breaks programs.
PUBLIC = [
    "AsyncTask",
    "Cancel",
    "Client",
    "FailedJob",
    "Harbor",
    "Job",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "JobRecord",
    "JobRequest",
    "JobState",
    "JsonCodec",
    "MsgpackCodec",
    "Query",
    "QueueSettings",
    "RateLimit",
    "Retention",
    "RetryPolicy",
    "Snooze",
    "Speculate",
    "Task",
    "TaskHarborError",
    "Unrecoverable",
    "Update",
    "Worker",
    "WorkerOptions",
    "__version__",
]


def test_the_public_names_are_these():
    assert taskharbor.__all__ == PUBLIC
    assert dir(taskharbor) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there(name):
    value = getattr(taskharbor, name)

    assert value is getattr(taskharbor, name)
    if isinstance(value, type):
        assert value.__name__ == name
        assert value.__doc__


def test_an_unknown_name_says_so():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = taskharbor.Nothing  # type: ignore[attr-defined]


def test_importing_the_package_imports_nothing_of_it():
    script = "import sys, taskharbor; print([one for one in sys.modules if one.startswith('taskharbor.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_names_for_tests_of_users_are_these():
    assert taskharbor.testing.__all__ == [
        "InlineHarbor",
        "SimulatedClock",
        "adrain",
        "assert_enqueued",
        "assert_not_enqueued",
        "drain",
        "enqueued",
        "in_memory",
        "run_inline",
    ]


@pytest.mark.parametrize("name", taskharbor.testing.__all__)
def test_a_name_for_tests_of_users_is_there_and_no_module(name):
    script = f"from taskharbor.testing import {name}; import types; assert callable({name}), {name}"

    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_pytest_plugin_costs_next_to_nothing_until_it_is_used():
    script = (
        "import sys, taskharbor.testing.pytest_plugin\n"
        "print([one for one in sys.modules if one.startswith(('taskharbor.harbor', 'taskharbor.worker'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"

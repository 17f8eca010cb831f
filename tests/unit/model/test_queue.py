"""Queue settings: what is left out stays, None takes away, and the harbor fills the gaps."""

from datetime import timedelta

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.model.limits import RateLimit
from taskharbor.model.queue import (
    QueueRules,
    QueueSettings,
    Retention,
    check_settings,
    fail_queue_of,
    retention_of,
    rules_of,
)
from taskharbor.model.state import JobState

RATE = RateLimit(5, timedelta(minutes=1))


def test_what_is_left_out_stays_and_none_takes_away():
    before = QueueSettings(queue="q", paused=True, max_running=3, execute_rate=RATE)
    after = QueueSettings(queue="q", max_running=None, fail_queue="dead").on_top_of(before)

    assert rules_of(after) == QueueRules(paused=True, execute_rate=RATE, fail_queue="dead")


def test_nothing_set_means_no_rule():
    assert rules_of(None) == rules_of(QueueSettings(queue="q")) == QueueRules()


def test_zero_is_a_limit_and_not_the_absence_of_one():
    assert rules_of(QueueSettings(queue="q", max_running=0)).max_running == 0


def test_the_queues_own_retention_and_fail_queue_win_over_the_harbors():
    own, harbor = Retention(failed=None), Retention(completed=timedelta(0))
    queue_rules = QueueRules(retention=own, fail_queue="mine")
    harbor_rules = QueueRules(retention=harbor, fail_queue="all")

    assert retention_of(queue_rules, harbor_rules) is own
    assert retention_of(QueueRules(), harbor_rules) is harbor
    assert fail_queue_of(queue_rules, harbor_rules) == "mine"
    assert fail_queue_of(QueueRules(), harbor_rules) == "all"
    assert fail_queue_of(QueueRules(), QueueRules()) is None


def test_the_default_retention_keeps_trouble_longer_than_success():
    kept = retention_of(QueueRules(), QueueRules())

    assert [kept.of(state) for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)] == [
        timedelta(hours=1),
        timedelta(days=14),
        timedelta(days=14),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "a b"},
        {"queue": "**"},
        {"paused": 1},
        {"paused": None},
        {"max_running": -1},
        {"max_running": True},
        {"enqueue_rate": 5},
        {"execute_rate": RateLimit(0, timedelta(seconds=1))},
        {"fail_queue": "*"},
        {"retention": timedelta(1)},
        {"retention": Retention(completed=timedelta(seconds=-1))},
    ],
)
def test_settings_that_make_no_sense_are_refused(fields):
    with pytest.raises(InvalidArgument):
        check_settings(QueueSettings(**{"queue": "q"} | fields))


def test_the_harbor_is_set_under_a_star():
    check_settings(QueueSettings(queue="*", max_running=0, retention=Retention(failed=None)))


def test_by_default_successes_are_kept_for_an_hour_and_the_rest_for_a_fortnight():
    kept = Retention()

    assert [kept.of(state) for state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)] == [
        timedelta(hours=1),
        timedelta(days=14),
        timedelta(days=14),
    ]

"""What a requeue may change."""

from datetime import timedelta

import pytest

from taskharbor.errors import InvalidArgument
from taskharbor.model.edit import NO_EDIT, Edit, check_edit


@pytest.mark.parametrize(
    "fields",
    [
        {"type": ""},
        {"requires": "a b"},
        {"payload": "text"},
        {"payload": b"x" * 11},
        {"headers": {"a": 1}},
        {"priority": 101},
        {"max_attempts": -1},
        {"max_stalls": 1.5},
        {"timeout": timedelta(seconds=-1)},
        {"min_backoff": timedelta(seconds=-1)},
        {"min_backoff": timedelta(seconds=2), "max_backoff": timedelta(seconds=1)},
    ],
    ids=str,
)
def test_an_edit_is_checked_like_a_new_job(fields):
    with pytest.raises(InvalidArgument):
        check_edit(Edit(**fields), max_payload=10)


def test_nothing_and_everything_may_be_edited():
    check_edit(NO_EDIT)
    check_edit(
        Edit(
            type="t",
            payload=b"x" * 10,
            headers={},
            priority=-100,
            requires="gpu",
            timeout=timedelta(0),
            max_attempts=0,
            max_stalls=0,
            min_backoff=None,
            max_backoff=timedelta(seconds=1),
        ),
        max_payload=10,
    )

"""A worker that could not report itself says so when it is made, not every five seconds in its log."""

from datetime import timedelta
from typing import Any

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.worker.config import WorkerConfig


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "\x1b[2J"}, "printable"),
        ({"name": "x" * 201}, "printable"),
        ({"labels": {"zone": "a\nb"}}, "printable"),
        ({"labels": {"zone": "x" * 1001}}, "printable"),
        ({"labels": {f"l{number}": "" for number in range(65)}}, "labels"),
        ({"report_every": timedelta(hours=7)}, "ttl"),
    ],
)
def test_what_cannot_be_reported_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        WorkerConfig(**said)

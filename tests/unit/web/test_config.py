"""The settings of a server: a value that cannot work is refused by its name when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.web.config import ServerConfig


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_connections": "many"}, "max_connections='many' must be a whole number"),
        ({"max_connections": 0}, "max_connections must be at least 1"),
        ({"max_batch_bytes": "16MiB"}, "max_batch_bytes='16MiB' must be a whole number"),
        ({"request_seconds": "30s"}, "request_seconds='30s' must be a number"),
        ({"scheduler": "no"}, "scheduler='no' must be True or False"),
        ({"ui": "maybe"}, "ui is on, read-only or off"),
        (
            {"allowed_hosts": "jobs.example"},
            r"allowed_hosts takes a tuple: allowed_hosts=\('jobs.example',\)",
        ),
        ({"targets": {"mail": "5s"}}, "must be a timedelta"),
        ({"trace_url": "javascript:alert({trace_id})"}, "trace_url: .* is no address like"),
        ({"trace_url": "https://traces.example/"}, "trace_url: .* is no address like"),
        ({"trace_url": "https://{trace_id}/{other}"}, "trace_url: .* is no address like"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        ServerConfig(**options)


def test_the_defaults_and_what_may_be_left_out_are_accepted() -> None:
    config = ServerConfig(max_connections_per_address=None, rate_per_second=5, request_seconds=2)

    assert config.max_connections_per_address is None

"""A server that cannot be reached is reported with its address, and without a password."""

import socket

import pytest

from taskharbor.drivers import connect
from taskharbor.errors import DriverUnavailable


async def test_a_closed_port_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can listen here meanwhile
        port = probe.getsockname()[1]

        with pytest.raises(DriverUnavailable) as failure:
            await connect(f"postgresql://user:hunter2@127.0.0.1:{port}/db").open()

    assert f"('127.0.0.1', {port})" in str(failure.value)
    assert "hunter2" not in str(failure.value)
    assert failure.value.done is False


async def test_an_unknown_host_is_no_lost_connection():
    with pytest.raises(DriverUnavailable, match="the host name of the server is not known") as failure:
        await connect("postgresql://user:hunter2@nosuch.invalid/db").open()

    assert "hunter2" not in str(failure.value)
    assert failure.value.done is False

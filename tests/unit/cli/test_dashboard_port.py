"""The socket of the dashboard beside a command: taken at once, so that two commands never share a port."""

import socket

from taskharbor.cli import dashboard


def test_a_port_in_use_makes_way_for_any_other_and_stays_taken() -> None:
    with dashboard.listen(0) as first:
        port = first.getsockname()[1]
        with dashboard.listen(port) as second, dashboard.listen(port) as third:
            assert len({taken.getsockname()[1] for taken in (first, second, third)}) == 3


def test_a_browser_that_comes_before_the_server_waits() -> None:
    with dashboard.listen(0) as listener:
        socket.create_connection(listener.getsockname(), timeout=10).close()
        assert dashboard.address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}/ui/"

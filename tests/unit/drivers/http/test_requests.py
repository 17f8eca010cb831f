"""Requests as bytes."""

from importlib import metadata

from taskharbor.drivers.http import requests
from taskharbor.drivers.http.address import address_of
from taskharbor.drivers.http.requests import Requests, repeat_of


def test_a_request_names_the_server_the_verb_and_the_call():
    made = Requests(address_of("http://secret@host:8000/jobs", {}), "handle")

    head, _, body = made.request("count", b"{}", made.next_call()).partition(b"\r\n\r\n")
    connections = head.decode().split("\r\n")

    assert connections[0] == "POST /jobs/api/driver/count HTTP/1.1"
    assert {"Host: host:8000", "Authorization: Bearer secret", "Content-Length: 2"} <= set(connections)
    assert "TaskHarbor-Call: handle-1" in connections
    assert body == b"{}"


def test_calls_of_one_handle_have_numbers_of_their_own():
    made = Requests(address_of("http://host", {}), "handle")

    assert [made.next_call() for _ in range(3)] == [1, 2, 3]


def test_a_call_that_is_sent_again_says_whom_it_asked_first():
    made = Requests(address_of("http://host", {}), "handle")

    again = made.request("settle", b"", 1, repeat_of("boot", 1.5))

    assert b"\r\nTaskHarbor-Repeat: boot 1.500\r\n" in again
    assert b"Authorization" not in again
    assert repeat_of("", 0.25) == "? 0.250"


def test_a_checkout_that_was_never_installed_shows_no_version(monkeypatch):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(requests, "version", missing)
    requests._user_agent.cache_clear()
    try:
        assert requests._user_agent().startswith("taskharbor-python/0 (")
    finally:
        requests._user_agent.cache_clear()

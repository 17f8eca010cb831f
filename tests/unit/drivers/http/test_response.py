"""Answers of HTTP servers, in whatever pieces they arrive."""

import itertools
from collections.abc import Iterable

import pytest

from taskharbor.drivers.http.response import MAX_BODY, MAX_HEAD, NotHttp, ResponseParser
from tests.unit.growth import assert_linear

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-One: a\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n1;name=value\r\nl\r\n1\r\no\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_THE_END = b"HTTP/1.0 404 Not Found\r\nContent-Type: text/html\r\n\r\nhello"
AFTER_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


def read(data: bytes, size: int) -> ResponseParser:
    response = ResponseParser()
    for start in range(0, len(data), size):
        response.feed(data[start : start + size])
    return response


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("data", [PLAIN, CHUNKED, AFTER_CONTINUE])
def test_an_answer_is_the_same_in_any_pieces(data: bytes, size: int) -> None:
    response = read(data, size)

    assert (response.status, response.is_complete, response.keeps_alive) == (200, True, True)
    assert response.take_body() == b"hello"


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    response = read(UNTIL_THE_END, 9)
    assert not response.is_complete

    assert response.end()
    assert (response.status, response.keeps_alive, response.take_body()) == (404, False, b"hello")


@pytest.mark.parametrize("data", [b"", PLAIN[:20], PLAIN[:-1], CHUNKED[:-1], CHUNKED[:60]])
def test_an_answer_that_is_cut_off_is_not_complete(data: bytes) -> None:
    response = read(data, 10)

    assert not response.end()


def test_a_server_that_wants_to_close_is_believed() -> None:
    response = read(PLAIN.replace(b"X-One: a", b"Connection: Close"), 1000)

    assert response.is_complete
    assert not response.keeps_alive


def test_no_content_has_no_content() -> None:
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n", 1000).is_complete


def test_an_answer_without_an_end_is_read_as_it_comes() -> None:
    response = ResponseParser()
    response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
    first = response.take_body()
    response.feed(b"4\r\ntwo\n\r\n")

    assert (first, response.take_body(), response.is_complete) == (b"one\n", b"two\n", False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * (MAX_HEAD + 1),
        PLAIN + b"more",
        b"HTTP/1.1 200 OK\r\n" + b"x" * MAX_HEAD,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttp):
        ResponseParser().feed(data)


def test_nothing_may_come_after_the_end() -> None:
    response = read(PLAIN, 1000)

    with pytest.raises(NotHttp):
        response.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")


def feed_all(response: ResponseParser, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        response.feed(piece)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_LENGTH = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (CHUNKED, b"100000\r\n" + b"x" * 0x100000 + b"\r\n"),
        (NO_LENGTH, b"x" * 0x100000),
    ],
)
def test_a_body_without_an_end_is_given_up(head: bytes, piece: bytes) -> None:
    response = ResponseParser()
    response.feed(head)

    with pytest.raises(NotHttp, match="more than"):
        feed_all(response, itertools.repeat(piece, MAX_BODY // 0x100000 + 1))


def test_a_stream_that_is_read_as_it_comes_may_be_longer_than_any_body() -> None:
    response = ResponseParser()
    response.feed(CHUNKED)

    for _ in range(MAX_BODY // 0x100000 + 1):
        response.feed(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        assert len(response.take_body()) == 0x100000


def test_trailers_without_an_end_are_given_up() -> None:
    response = ResponseParser()
    response.feed(CHUNKED + b"0\r\n")

    with pytest.raises(NotHttp):
        feed_all(response, (b"x-%d: 1\r\n" % number for number in range(MAX_HEAD)))


def test_small_chunks_take_little_more_room_than_their_bytes() -> None:
    response = ResponseParser()
    response.feed(CHUNKED + b"1\r\nx\r\n" * 100_000)

    assert len(response._body) < 10
    assert response.take_body() == b"x" * 100_000


@pytest.mark.parametrize("data", [b"1\r\nx\r\n", b"2\r\nxy\r\n", b"a: b\r\n"])
def test_many_small_chunks_take_time_in_proportion(data: bytes) -> None:
    head = CHUNKED + (b"0\r\n" if b":" in data else b"")

    assert_linear(lambda sent: ResponseParser().feed(sent), lambda n: head + data * n)


@pytest.mark.parametrize("length", ["9" * 5000, "\xb2", "-1"])
def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(NotHttp):
        ResponseParser().feed(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode("latin-1"))

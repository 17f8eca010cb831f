"""Calls of blocking code, from any thread: the same requests and responses over plain sockets.

A thread takes an idle socket or opens a new one, and returns it. Only enqueues are made this way; a job's id
makes it safe to send one again.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

from taskharbor.drivers.http import decoding
from taskharbor.drivers.http.address import Address
from taskharbor.drivers.http.connections import CONNECT_SECONDS, IDLE_SECONDS
from taskharbor.drivers.http.faults import Lost, TooSlow, ours, unanswered
from taskharbor.drivers.http.requests import UNKNOWN_BOOT, Requests, repeat_of
from taskharbor.drivers.http.response import NotHttp, ResponseParser
from taskharbor.errors import DriverUnavailable
from taskharbor.model.clock import Clock, SystemClock

_PIECE = 256 * 1024


class Blocking:
    """Blocking calls of one handle."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, requests: Requests) -> None:
        self._address = address
        self._tls = tls
        self._requests = requests
        self._clock: Clock = SystemClock()
        self._idle: list[tuple[socket.socket, float]] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self, verb: str, body: bytes) -> Any:
        """Call a verb and return its answer; after a lost reply it is called once more."""
        call = self._requests.next_call()
        sent = self._clock.monotonic()
        try:
            response = self._response(self._requests.request(verb, body, call), fresh=False)
        except Lost:
            again = repeat_of(UNKNOWN_BOOT, self._clock.monotonic() - sent)
            try:
                response = self._response(self._requests.request(verb, body, call, again), fresh=True)
            except (
                Lost,
                DriverUnavailable,
            ) as error:  # also if the server is gone now: the first call reached it
                raise unanswered(error, self._address) from error
        return decoding.read(verb, response, self._address)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _response(self, request: bytes, *, fresh: bool) -> ResponseParser:
        connection = self._new() if fresh else self._waiting() or self._new()
        try:
            response = self._exchange(connection, request)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, response)
        return response

    def _exchange(self, connection: socket.socket, request: bytes) -> ResponseParser:
        response = ResponseParser()
        try:
            connection.sendall(request)
            while not response.is_complete:
                data = connection.recv(_PIECE)
                if data:
                    response.feed(data)
                elif not response.end():
                    raise Lost("the connection broke")
        except TimeoutError:
            raise unanswered(TooSlow(self._address.timeout_seconds), self._address) from None
        except NotHttp as error:
            raise decoding.not_http(error, self._address) from error
        except OSError as error:
            raise Lost(error.strerror or str(error)) from error
        return response

    def _waiting(self) -> socket.socket | None:
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if self._clock.monotonic() - since < IDLE_SECONDS:
                    return connection
                connection.close()
        return None

    def _give_back(self, connection: socket.socket, response: ResponseParser) -> None:
        with self._lock:
            if response.keeps_alive and not self._is_closed:
                self._idle.append((connection, self._clock.monotonic()))
                return
        connection.close()

    def _new(self) -> socket.socket:
        address = self._address
        try:
            connection = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_hostname=address.host)
                connection.settimeout(address.timeout_seconds)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise ours(error, address) from error
        return connection

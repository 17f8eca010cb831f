"""A call is encoded when it is made, and those bytes are stored: unless somebody changed the request."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from taskharbor import Client
from taskharbor.client.task import Task
from taskharbor.drivers import connect
from taskharbor.drivers.contract import Driver
from taskharbor.model.codec import CODEC_HEADER, JsonCodec, MsgpackCodec
from taskharbor.model.job import JobRecord
from taskharbor.tasks import JobRequest


class CountingCodec(JsonCodec):
    """JSON that counts how often it was asked to encode."""

    encodes = 0

    def encode(self, value: Any) -> bytes:
        self.encodes += 1
        return super().encode(value)


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with connect("memory://") as driver:
        yield driver


def sums(codec: Any = None, **options: Any) -> Task[..., Any]:
    def add(numbers: list[int], more: int = 0) -> int:
        return sum(numbers) + more

    return Task(add, JobRequest(type="add", **options), codec=codec or JsonCodec())


async def stored(driver: Driver, *handles: Any) -> list[JobRecord]:
    return [record for record in await driver.get([handle.id for handle in handles]) if record is not None]


async def test_the_payload_of_a_call_is_encoded_once(driver: Driver) -> None:
    codec = CountingCodec()
    task, client = sums(codec), Client(driver, codec=codec)

    one = await client.aenqueue(task.call([1]))
    many = await client.aenqueue_many([task.call([2]), task.call(numbers=[3], more=4)])

    assert codec.encodes == 3
    payloads = [record.payload for record in await stored(driver, one, *many)]
    assert payloads == [b'{"numbers":[1]}', b'{"numbers":[2]}', b'{"numbers":[3],"more":4}']


async def test_a_call_keeps_its_arguments_as_they_were(driver: Driver) -> None:
    codec, numbers = JsonCodec(), [1]
    request = sums(codec).call(numbers)

    numbers.append(2)
    [record] = await stored(driver, *await Client(driver, codec=codec).aenqueue_many([request]))

    assert record.payload == b'{"numbers":[1]}'


async def test_a_changed_copy_of_a_call_is_stored_as_changed(driver: Driver) -> None:
    codec = JsonCodec()
    request = sums(codec, queue="sums").call([1])
    changed = [
        request,
        msgspec.structs.replace(request, payload={"numbers": [9]}),
        msgspec.structs.replace(request, priority=5, delay=timedelta(hours=1)),
        msgspec.structs.replace(request, queue="others"),
    ]

    records = await stored(driver, *await Client(driver, codec=codec).aenqueue_many(changed))

    rows = [(record.queue, record.priority, record.payload) for record in records]
    assert rows == [
        ("sums", 0, b'{"numbers":[1]}'),
        ("sums", 0, b'{"numbers":[9]}'),
        ("sums", 5, b'{"numbers":[1]}'),
        ("others", 0, b'{"numbers":[1]}'),
    ]
    assert [record.run_at is None for record in records] == [True, True, False, True]


async def test_a_client_with_another_codec_encodes_a_call_with_its_own(driver: Driver) -> None:
    request = sums(JsonCodec()).call([1])

    [record] = await stored(driver, await Client(driver, codec=MsgpackCodec()).aenqueue(request))

    assert record.headers[CODEC_HEADER] == "msgpack"
    assert msgspec.msgpack.decode(record.payload) == {"numbers": [1]}


async def test_calls_of_several_tasks_keep_the_options_of_their_own(driver: Driver) -> None:
    codec = JsonCodec()
    one, other = sums(codec, priority=1), sums(codec, queue="slow", max_attempts=7)

    handles = await Client(driver, codec=codec).aenqueue_many(
        [one.call([1]), other.call([2]), one.call([3]), JobRequest(type="plain", payload=4)]
    )

    rows = [(r.type, r.queue, r.priority, r.max_attempts, r.payload) for r in await stored(driver, *handles)]
    assert rows == [
        ("add", "default", 1, 0, b'{"numbers":[1]}'),
        ("add", "slow", 0, 7, b'{"numbers":[2]}'),
        ("add", "default", 1, 0, b'{"numbers":[3]}'),
        ("plain", "default", 0, 0, b"4"),
    ]


def test_the_bytes_are_no_part_of_what_a_request_says() -> None:
    request = sums().call([1])

    assert request == JobRequest(type="add", payload={"numbers": [1]})
    assert "encoded" not in repr(request)
    assert b"encoded" not in msgspec.json.encode(request)

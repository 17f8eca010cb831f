"""A process that enqueues and settles until it is killed, again and again, and the check after each death.

Run by test_durability. Prints one line at the end: how many deaths, enqueues and settlements were seen.
"""

import asyncio
import os
import random
import signal
import sys
import time

from taskharbor.drivers import connect
from taskharbor.drivers.messages import Claim, Settled
from taskharbor.model.clock import SystemClock
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob
from taskharbor.model.settlement import Ack
from taskharbor.model.state import JobState


async def work(url: str, out: int) -> None:
    """Say on `out` what was answered, right after it was answered."""
    entropy, clock = Entropy(), SystemClock()
    async with connect(url) as driver:
        settlements: list[Ack] = []
        while True:
            jobs = [
                NewJob(id=entropy.job_id(clock.now()), type="crash.job", payload=b"x" * 200)
                for _ in range(20)
            ]
            answers = await driver.enqueue(jobs)
            os.write(out, "".join(f"enqueued {answer.id}\n" for answer in answers).encode())
            done = await driver.exchange(settlements, Claim(queues=("default",), worker_id="w", limit=15))
            ended = [answer.id for answer in done.settled if isinstance(answer, Settled)]
            os.write(out, "".join(f"settled {job_id}\n" for job_id in ended).encode())
            settlements = [Ack(job.lease, b"result") for job in done.claimed]


def one_death(url: str, word: bytes, after_seconds: float) -> list[list[str]]:
    """What a worker printed before it was killed, at some instant after it had printed this word."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        asyncio.run(work(url, writing))
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, True)
    output = b""
    while word not in output and (more := os.read(reading, 65_536)):  # nothing more: it has died by itself
        output += more
    ends_at = time.monotonic() + after_seconds
    os.set_blocking(reading, False)
    while time.monotonic() < ends_at:
        output += _read(reading)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := _read(reading):
        output += more
    os.close(reading)
    whole = output[
        : output.rfind(b"\n") + 1
    ]  # a line cut short by the death was still answered; it is not needed
    return [line.split() for line in whole.decode().splitlines()]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except BlockingIOError:
        return b""


async def check(url: str, words: list[list[str]]) -> None:
    async with connect(url) as driver:
        for word, expected in (("enqueued", set(JobState)), ("settled", {JobState.COMPLETED})):
            ids = [job_id for kind, job_id in words if kind == word]
            for start in range(0, len(ids), 1000):
                for job_id, record in zip(
                    ids[start:], await driver.get(ids[start : start + 1000]), strict=False
                ):
                    assert record is not None, f"{job_id} was {word} and is gone"
                    assert record.state in expected, f"{job_id} was {word} and is {record.state}"


def main(url: str, seed: int, deaths: int) -> None:
    chance = random.Random(seed)
    counts = {"enqueued": 0, "settled": 0}
    for number in range(deaths):
        words = one_death(url, b"settled" if number % 2 else b"enqueued", chance.uniform(0, 0.08))
        for word, _job_id in words:
            counts[word] += 1
        asyncio.run(check(url, words))
    print(deaths, counts["enqueued"], counts["settled"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

"""Tests of your own tasks: a real worker, time that you move, and no store but memory."""

from taskharbor import Harbor
from taskharbor.testing import InlineHarbor, SimulatedClock, assert_enqueued, assert_not_enqueued, drain

clock = SimulatedClock()
harbor = Harbor("memory://", clock=clock)
attempts: list[int] = []


@harbor.task(max_attempts=3)
def remind(user_id: int) -> str:
    attempts.append(user_id)
    if len(attempts) < 3:
        raise ConnectionError("the letter box is full")
    return "reminded"


def sign_up(user_id: int) -> None:
    remind.using(delay="7d").enqueue(user_id)


if __name__ == "__main__":
    sign_up(7)
    assert_enqueued(harbor, remind, args=(7,), times=1)
    assert_not_enqueued(harbor, remind, args=(8,))

    ran = drain(harbor)  # jumps over the week and over the backoff of both retries
    print([attempt.outcome for attempt in ran])
    print(int(clock.monotonic() // 86400), "days later")

    with InlineHarbor() as inline:

        @inline.task
        def double(n: int) -> int:
            return n * 2

        print(double.enqueue(21).result())

# Prints:
#   ['retried', 'retried', 'completed']
#   7 days later
#   42

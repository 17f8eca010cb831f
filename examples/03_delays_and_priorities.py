"""When and in which order: delays, instants, priorities and queues, chosen per job with `using`."""

from datetime import UTC, datetime

from taskharbor import Harbor

harbor = Harbor("memory://")  # every run starts with an empty store


@harbor.task
def say(text: str) -> None:
    print(text)


if __name__ == "__main__":
    say.enqueue("third")
    say.using(priority=10).enqueue("first")
    say.using(priority=5).enqueue("second")
    tomorrow = say.using(delay="1d").enqueue("tomorrow")
    in_2035 = say.using(run_at=datetime(2035, 1, 1, tzinfo=UTC)).enqueue("in 2035")

    harbor.worker(concurrency=1).run(until_idle=True)
    print(tomorrow.state, in_2035.state, harbor.queue("default").counts().scheduled)

# Prints:
#   first
#   second
#   third
#   scheduled scheduled 2

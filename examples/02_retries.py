"""What happens when a handler fails: it is tried again later, or not at all."""

from datetime import timedelta

from taskharbor import Harbor, JobContext, RetryPolicy, Unrecoverable

quick = RetryPolicy(base=timedelta(milliseconds=1), jitter=0.0)
harbor = Harbor("sqlite:///retries.db", retry=quick)


@harbor.task(max_attempts=3)
def fetch(ctx: JobContext, url: str) -> str:
    print(f"attempt {ctx.attempt} of {url}")
    if ctx.attempt < 3:
        raise ConnectionError("no route to host")
    return "a page"


@harbor.task
def parse(page: str) -> None:
    raise Unrecoverable(f"{page!r} is no page")  # another try would not help


if __name__ == "__main__":
    fetched, parsed = fetch.enqueue("example.com"), parse.enqueue("")
    while not fetched.refresh().state.is_terminal:
        harbor.worker(concurrency=1).run(until_idle=True)
    print(fetched.result())
    print(parsed.state, "after", parsed.record.attempts, "attempt:", parsed.record.last_error)

# Prints:
#   attempt 1 of example.com
#   attempt 2 of example.com
#   attempt 3 of example.com
#   a page
#   failed after 1 attempt: Unrecoverable: '' is no page

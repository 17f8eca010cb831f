"""The smallest program: put a job in, and do it. Usually the two happen in different processes."""

from taskharbor import Harbor

harbor = Harbor("sqlite:///hello.db")


@harbor.task
def greet(name: str) -> str:
    print(f"hello, {name}")
    return f"greeted {name}"


if __name__ == "__main__":
    job = greet.enqueue("Ada")
    print(job.state)
    harbor.worker().run(until_idle=True)  # in another terminal: taskharbor worker 01_hello:harbor
    print(job.result())

# Prints:
#   ready
#   hello, Ada
#   greeted Ada

"""Many jobs in one step: all of them are stored, or none."""

from taskharbor import Harbor
from taskharbor.errors import InvalidArgument

harbor = Harbor("memory://")  # every run starts with an empty store


@harbor.task
def resize(picture: str, width: int = 800) -> None: ...


if __name__ == "__main__":
    calls = [resize.call(f"picture-{n}.jpg") for n in range(1000)]
    jobs = harbor.enqueue_many(calls)
    print(len(jobs), harbor.queue("default").counts().ready)

    try:
        harbor.enqueue_many(
            [resize.call("one.jpg"), resize.using(delay="20w").using(delay=-1).call("two.jpg")]
        )
    except InvalidArgument as error:
        print(error)
    print(harbor.queue("default").counts().ready)

# Prints:
#   1000 1000
#   delay=-1s must not be negative
#   1000

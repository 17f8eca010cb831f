"""Queues can be paused and limited while everything runs; workers obey from their next claim on."""

from datetime import timedelta

from taskharbor import Harbor, QueueSettings, RateLimit
from taskharbor.errors import RateLimited

harbor = Harbor("memory://")  # every run starts with an empty store
mail = harbor.queue("mail")


@harbor.task(queue="mail")
def send(number: int) -> None:
    print(f"sent {number}")


if __name__ == "__main__":
    mail.configure(QueueSettings(queue="mail", max_running=1, enqueue_rate=RateLimit(3, timedelta(hours=1))))
    for number in range(1, 5):
        try:
            send.enqueue(number)
        except RateLimited as error:
            print(f"{number} must wait about {error.retry_after.total_seconds() / 60:.0f} minutes")

    mail.pause()
    harbor.worker().run(until_idle=True)
    print("paused:", mail.counts().ready, "wait")
    mail.resume()
    harbor.worker().run(until_idle=True)

# Prints:
#   4 must wait about 60 minutes
#   paused: 3 wait
#   sent 1
#   sent 2
#   sent 3

"""Your own tasks in a simulated world: lost calls, killed workers, and virtual time, from one seed."""

from collections import Counter
from datetime import timedelta

from taskharbor import Client, Harbor, JobContext
from taskharbor.testing.simulator import HarborApp, Plan, Producer, simulate

harbor = Harbor("memory://")
paid: Counter[str] = Counter()  # what really happened: a handler may run twice
settled: dict[str, int] = {}  # the same behind a fence: each order counts once


@harbor.task(name="pay", max_attempts=5)
async def pay(ctx: JobContext, order: str) -> None:
    await ctx.clock.sleep(2.0)  # two virtual seconds: use ctx.clock, and a seed replays
    paid[order] += 1
    settled[order] = max(ctx.fence, settled.get(order, 0))


async def traffic(producer: Producer, client: Client) -> None:
    """What one producer does. `put` tries again with the same id until the job is stored."""
    for number in range(10):
        await producer.clock.sleep(producer.choices.seconds(0.1, 1.0))
        await producer.put(client, pay.call(f"order-{number}"))


plan = Plan(
    seed=5,
    producers=1,
    workers=2,
    lease_seconds=3.0,
    faults=frozenset({"kill", "lost_reply", "freeze"}),
    fault_rate=0.1,
)
outcome = simulate(plan, HarborApp(harbor, traffic))

print("sound" if outcome.is_sound else outcome.verdict)
print("orders paid:", len(settled))
print("simulated time:", timedelta(seconds=round(outcome.seconds)) > timedelta(seconds=30))
print("some ran more than once:", sum(paid.values()) > len(paid))
print("the same again:", simulate(plan, HarborApp(harbor, traffic)).hash == outcome.hash)

# Prints:
#   sound
#   orders paid: 10
#   simulated time: True
#   some ran more than once: True
#   the same again: True

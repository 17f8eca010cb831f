"""Jobs by the clock: one job per tick, whatever the number of machines that run a scheduler."""

from taskharbor import Harbor

harbor = Harbor("sqlite:///schedules.db")


@harbor.task(queue="chores")
def clean_up(days: int) -> None:
    print(f"removed what is older than {days} days")


harbor.cron("0 3 * * *", call=clean_up.call(days=30), timezone="Europe/Berlin")


@harbor.cron(every="15m", name="heartbeat")
@harbor.task(queue="chores")
def ping() -> None: ...


if __name__ == "__main__":
    for entry in harbor.schedules.list():
        print(entry.schedule.name, entry.schedule.cron or entry.schedule.every)
    print(harbor.schedules.pause("heartbeat").paused)
    harbor.schedules.run("clean_up")  # now, besides its ticks
    harbor.worker().run(until_idle=True)

# Prints:
#   clean_up 0 3 * * *
#   heartbeat 0:15:00
#   True
#   removed what is older than 30 days

"""What happens by the clock: duties, run by one leader among any number of schedulers."""

from taskharbor.scheduler.duty import Duty
from taskharbor.scheduler.scheduler import Scheduler

__all__ = ["Duty", "Scheduler"]

"""The types that calls of the public API return or take, besides those of `taskharbor` itself.

    from taskharbor.types import Counts, Page

Use them in annotations. `taskharbor.errors` has the exceptions.
"""

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import (
    CancelAnswer,
    CancelResult,
    Counts,
    Enqueued,
    EnqueueResult,
    Page,
    QueueInfo,
)
from taskharbor.events import (
    AttemptFinished,
    AttemptWentWrong,
    ChildDied,
    DriverTrouble,
    DutyRan,
    Event,
    EventBus,
    HandlerAbandoned,
    JobEnqueued,
    JobGivenUp,
    JobStarted,
    LeasesExtended,
    LeaseWasLost,
    LoopBlocked,
    RanTwice,
    ScheduleFailed,
    ScheduleFired,
    SpeculationStarted,
    SpeculationWatched,
    WorkerStarted,
    WorkerStopped,
)
from taskharbor.harbor.keywords import CronDecorator
from taskharbor.harbor.queues import QueueControl
from taskharbor.harbor.schedules import Schedules
from taskharbor.middleware import AttemptMiddleware, EnqueueMiddleware
from taskharbor.model.bonds import Bonds, Family
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec
from taskharbor.model.duration import Duration
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import AttemptRecord, Avoid, FailureKind, Lease, NewJob, Note, Progress
from taskharbor.model.presence import GpuUse, Machine, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules
from taskharbor.model.schedule import Misfire, Schedule, StoredSchedule

__all__ = [
    "AttemptFinished",
    "AttemptMiddleware",
    "AttemptRecord",
    "AttemptWentWrong",
    "Avoid",
    "Bonds",
    "CancelAnswer",
    "CancelResult",
    "ChildDied",
    "Clock",
    "Codec",
    "Counts",
    "CronDecorator",
    "Driver",
    "DriverTrouble",
    "Duration",
    "DutyRan",
    "Edit",
    "EnqueueMiddleware",
    "EnqueueResult",
    "Enqueued",
    "Entropy",
    "Event",
    "EventBus",
    "FailureKind",
    "Family",
    "GpuUse",
    "HandlerAbandoned",
    "JobEnqueued",
    "JobGivenUp",
    "JobStarted",
    "Lease",
    "LeaseWasLost",
    "LeasesExtended",
    "LoopBlocked",
    "Machine",
    "Misfire",
    "NewJob",
    "Note",
    "Page",
    "Progress",
    "QueueControl",
    "QueueInfo",
    "QueueRules",
    "RanTwice",
    "Schedule",
    "ScheduleFailed",
    "ScheduleFired",
    "Schedules",
    "SpeculationStarted",
    "SpeculationWatched",
    "StoredSchedule",
    "WorkerInfo",
    "WorkerReport",
    "WorkerStarted",
    "WorkerStopped",
]

"""The types that calls of the public API return or take, besides those of `taskharbor` itself.

    from taskharbor.types import Counts, Page

Use them in annotations. `taskharbor.errors` has the exceptions.
"""

from taskharbor.client.workflow import Node, Workflow
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
    DeadlineMissed,
    DriverTrouble,
    DutyRan,
    Event,
    EventBus,
    EventSent,
    HandlerAbandoned,
    JobEnqueued,
    JobGivenUp,
    JobParked,
    JobSkipped,
    JobStarted,
    LeasesExtended,
    LeaseWasLost,
    LoopBlocked,
    RanTwice,
    ScheduleFailed,
    ScheduleFired,
    SpeculationStarted,
    SpeculationWatched,
    StepRan,
    WorkerStarted,
    WorkerStopped,
    WorkflowEnded,
)
from taskharbor.harbor.keywords import CronDecorator
from taskharbor.harbor.queues import QueueControl
from taskharbor.harbor.schedules import Schedules
from taskharbor.middleware import AttemptMiddleware, EnqueueMiddleware
from taskharbor.model.bonds import Bonds, Family, FamilyEnd
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec
from taskharbor.model.duration import Duration
from taskharbor.model.edit import Edit
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import AttemptRecord, Avoid, FailureKind, Lease, NewJob, Note, Progress
from taskharbor.model.presence import GpuUse, Machine, WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules
from taskharbor.model.schedule import Misfire, Schedule, StoredSchedule
from taskharbor.tasks.request import Call
from taskharbor.worker.durable import MapResult
from taskharbor.worker.steps import Mappable

__all__ = [
    "AttemptFinished",
    "AttemptMiddleware",
    "AttemptRecord",
    "AttemptWentWrong",
    "Avoid",
    "Bonds",
    "Call",
    "CancelAnswer",
    "CancelResult",
    "ChildDied",
    "Clock",
    "Codec",
    "Counts",
    "CronDecorator",
    "DeadlineMissed",
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
    "EventSent",
    "FailureKind",
    "Family",
    "FamilyEnd",
    "GpuUse",
    "HandlerAbandoned",
    "JobEnqueued",
    "JobGivenUp",
    "JobParked",
    "JobSkipped",
    "JobStarted",
    "Lease",
    "LeaseWasLost",
    "LeasesExtended",
    "LoopBlocked",
    "Machine",
    "MapResult",
    "Mappable",
    "Misfire",
    "NewJob",
    "Node",
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
    "StepRan",
    "StoredSchedule",
    "WorkerInfo",
    "WorkerReport",
    "WorkerStarted",
    "WorkerStopped",
    "Workflow",
    "WorkflowEnded",
]

"""Every metric, named once: exposition, dashboard, alert rules and guide are checked against this list."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram"]

WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
RUN_BUCKETS = (*(0.01 * 2**power for power in range(15)), 600, 1800, 3600)
WORKFLOW_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400, 604_800)
STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metric(msgspec.Struct, frozen=True):
    """One metric. `folds` says how the values of several worker processes become one."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    folds: Literal["sum", "max"] = "sum"


# ------------------------------------------------------------------ what a process counts

JOBS_ENQUEUED = Metric(
    "taskharbor_jobs_enqueued_total",
    "counter",
    ("queue", "task"),
    "Jobs enqueued by this process; duplicates of a known id or key are not counted.",
)
JOBS_FINISHED = Metric(
    "taskharbor_jobs_finished_total",
    "counter",
    ("queue", "task", "kind", "outcome"),
    "Attempts by how they ended: completed, retried, failed, cancelled, released, snoozed, parked, stalled, "
    "lost.",
)
LEASES_LOST = Metric(
    "taskharbor_leases_lost_total",
    "counter",
    ("queue",),
    "Jobs whose lease a live worker lost while running them.",
)
STALLS = Metric(
    "taskharbor_job_stalls_total",
    "counter",
    ("queue", "task"),
    "Attempts whose worker died or stopped responding, counted when the job is claimed again or fails.",
)
COPIES = Metric(
    "taskharbor_speculative_copies_total",
    "counter",
    ("queue", "task"),
    "Second runs that the leading scheduler started for slow jobs.",
)
WINS = Metric(
    "taskharbor_speculative_wins_total",
    "counter",
    ("queue", "task"),
    "Second runs that finished before the first.",
)
DOUBLE_RUNS = Metric(
    "taskharbor_double_runs_total",
    "counter",
    ("queue", "task"),
    "Handlers that finished after losing their lease: the job ran, or runs, twice.",
)
ABANDONED = Metric(
    "taskharbor_handlers_abandoned_total",
    "counter",
    ("queue", "task"),
    "Handlers that were asked to stop and still run, without a slot.",
)
LOOP_BLOCKED = Metric(
    "taskharbor_loop_blocked_total",
    "counter",
    (),
    "Times that a handler blocked the event loop of a worker.",
)
SCHEDULE_FIRES = Metric(
    "taskharbor_schedule_fires_total",
    "counter",
    ("schedule", "outcome"),
    "Ticks that became a job (fired), and tries that failed (error).",
)
ORPHANS = Metric(
    "taskharbor_orphans_dropped_total",
    "counter",
    (),
    "Store entries without a job that this process found and deleted: records were lost.",
)
WORKFLOWS_ENDED = Metric(
    "taskharbor_workflows_ended_total",
    "counter",
    ("task", "state"),
    "Whole workflows that ended, counted by the process whose call ended them: completed, failed, cancelled.",
)
DEADLINES_MISSED = Metric(
    "taskharbor_deadlines_missed_total",
    "counter",
    ("queue", "task"),
    "Jobs, events and workflows that were not over by their deadline.",
)
PARKS = Metric(
    "taskharbor_parks_total",
    "counter",
    ("queue", "task"),
    "Handlers that gave up their slot to wait for children, an event or a time.",
)
STEPS = Metric(
    "taskharbor_steps_total",
    "counter",
    ("remembered",),
    "Steps of durable handlers that ran (false), or whose stored result was used (true).",
)
STORE_ERRORS = Metric(
    "taskharbor_store_errors_total",
    "counter",
    ("op",),
    "Calls to the store that failed because of the store.",
)
DUTY_JOBS = Metric(
    "taskharbor_duty_jobs_total",
    "counter",
    ("duty",),
    "Items handled by the duties of the leading scheduler: sweep, promote, fire-cron, speculate, prune.",
)
DUTY_ERRORS = Metric(
    "taskharbor_duty_errors_total", "counter", ("duty",), "Duties of the leading scheduler that failed."
)
PROCESS_ENDS = Metric(
    "taskharbor_worker_process_ends_total",
    "counter",
    ("how",),
    "Worker processes of --processes that ended: done, recycled or crashed.",
)

SERVER_DROPPED = Metric(
    "taskharbor_server_connections_dropped_total",
    "counter",
    ("reason",),
    "Connections that the server refused or closed: full, share, made_room, unread, slow or malformed.",
)

JOB_WAIT = Metric(
    "taskharbor_job_wait_seconds",
    "histogram",
    ("queue", "task"),
    "Time from when a job could run until it was claimed.",
    WAIT_BUCKETS,
)
JOB_RUN = Metric(
    "taskharbor_job_run_seconds",
    "histogram",
    ("queue", "task", "kind"),
    "How long handlers ran, whatever the outcome.",
    RUN_BUCKETS,
)
WORKFLOW_SECONDS = Metric(
    "taskharbor_workflow_seconds",
    "histogram",
    ("task",),
    "Time from the enqueue of whole workflows to their end, however they ended.",
    WORKFLOW_BUCKETS,
)
STORE_OP = Metric(
    "taskharbor_store_op_seconds",
    "histogram",
    ("op",),
    "How long calls to the store took, including failed ones.",
    STORE_BUCKETS,
)

WORKER_SLOTS = Metric(
    "taskharbor_worker_slots", "gauge", ("kind",), "Jobs that may run at the same time in this process."
)
WORKER_BUSY = Metric(
    "taskharbor_worker_busy", "gauge", ("kind",), "Slots with a job that is not settled yet."
)
WORKER_LEASE = Metric(
    "taskharbor_worker_lease_seconds",
    "gauge",
    ("kind",),
    "How long a lease lasts without a heartbeat.",
    folds="max",
)
HEARTBEAT_LAG = Metric(
    "taskharbor_heartbeat_lag_seconds",
    "gauge",
    ("kind",),
    "How late the most overdue lease extension is.",
    folds="max",
)
WORKER_PROCESSES = Metric("taskharbor_worker_processes", "gauge", (), "Live worker processes of --processes.")
SERVER_CONNECTIONS = Metric("taskharbor_server_connections", "gauge", (), "Open connections of the server.")
BUILD_INFO = Metric(
    "taskharbor_build_info",
    "gauge",
    ("version", "driver"),
    "Always 1; the labels say what runs here.",
    folds="max",
)

# ------------------------------------------------------------------ of the store: reported by one process

JOBS = Metric("taskharbor_jobs", "gauge", ("queue", "state"), "Jobs in the store.")
QUEUE_OLDEST = Metric(
    "taskharbor_queue_oldest_seconds", "gauge", ("queue",), "How long the oldest ready job has been waiting."
)
QUEUE_PAUSED = Metric("taskharbor_queue_paused", "gauge", ("queue",), "1 while a queue is paused.")
QUEUE_LIMIT = Metric(
    "taskharbor_queue_limit",
    "gauge",
    ("queue",),
    "Most jobs of a queue that may run at the same time, if limited.",
)
WORKERS = Metric("taskharbor_workers", "gauge", ("kind",), "Live workers in the store.")
SCHEDULE_LAG = Metric(
    "taskharbor_schedule_lag_seconds",
    "gauge",
    ("schedule",),
    "By how much the oldest tick without a job is late; 0 when all is well.",
)

CONSEQUENCES = Metric(
    "taskharbor_consequences_waiting",
    "gauge",
    (),
    "Consequences of ended jobs for others that wait to be carried out; 1000 means 1000 or more.",
)

ALL: dict[str, Metric] = {
    metric.name: metric for metric in list(globals().values()) if isinstance(metric, Metric)
}
EVERY_QUEUE_LABEL = "*"
OTHER = "other"
"""The task, and the queue, of whatever comes after the first MAX_SERIES pairs of both."""
MAX_SERIES = 1000

"""What was asked of a store and what it answered, and whether that keeps every promise.

driver = Recorded(driver, Recorder("worker 1", into_file(path)))   every call is written down
verdict = check(read_history(*paths))                              every promise is looked at
assert verdict.is_sound, verdict
"""

from taskharbor.testing.history.checker import check
from taskharbor.testing.history.events import (
    Facts,
    HistoryEvent,
    digest_of,
    facts_of,
    facts_of_new,
    history_hash,
    read_history,
    write_history,
)
from taskharbor.testing.history.recorder import Recorded, Recorder, into_file, recorded_runs
from taskharbor.testing.history.verdict import PROMISES, Terms, Verdict, Violation

__all__ = [
    "PROMISES",
    "Facts",
    "HistoryEvent",
    "Recorded",
    "Recorder",
    "Terms",
    "Verdict",
    "Violation",
    "check",
    "digest_of",
    "facts_of",
    "facts_of_new",
    "history_hash",
    "into_file",
    "read_history",
    "recorded_runs",
    "write_history",
]

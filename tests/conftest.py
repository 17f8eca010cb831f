"""What holds for every test: the processes that tests start find the usual signals, whoever started the run.

A run in the background of a script, under nohup or in cron ignores SIGINT, SIGQUIT or SIGHUP, and whatever it
starts inherits that. A handler that does nothing is not inherited: this run goes on ignoring the signal, and
what it starts begins as from a terminal.
"""

from __future__ import annotations

import os
import signal

_VARIABLE = (
    "PYTEST_IGNORED_SIGNALS"  # pytest-xdist's processes are started by the first one, and must know too
)
_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1)


def _ignore(*_: object) -> None:
    """Instead of SIG_IGN."""


def _keep_ignoring_alone() -> None:
    inherited = {number.name for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN}
    names = inherited | set(os.environ.get(_VARIABLE, "").split())
    for name in names:
        signal.signal(signal.Signals[name], _ignore)
    if names:
        os.environ[_VARIABLE] = " ".join(sorted(names))


_keep_ignoring_alone()

"""taskharbor dev: worker, scheduler and dashboard of an app, restarted when a file changes."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from taskharbor.cli import dashboard
from taskharbor.cli.child_command import started
from taskharbor.cli.config import chosen_app, chosen_include
from taskharbor.cli.exit_codes import DONE, UsageError
from taskharbor.cli.file_watch import changes
from taskharbor.cli.output import Output
from taskharbor.cli.session import AppArgument, IncludeFlag, UrlFlag, was_given, with_output

_STOP_SECONDS = 15.0


@with_output
def command(
    out: Output,
    app: AppArgument = None,
    include: IncludeFlag = None,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", "-q", help="Queues to serve, comma-separated. Default: those of the app's tasks."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Jobs to run at the same time.")
    ] = 10,
    watch: Annotated[
        list[Path] | None, typer.Option("--watch", help="File or folder to watch. Default: this folder.")
    ] = None,
    no_scheduler: Annotated[bool, typer.Option("--no-scheduler", help="Do not run the scheduler.")] = False,
    ui: Annotated[
        bool | None,
        typer.Option("--ui/--no-ui", help="Serve the dashboard. Default: on a terminal."),
    ] = None,
    url: UrlFlag = None,
) -> int:
    """Run the worker, scheduler and dashboard of an app; restart them when a file changes.

    Running jobs get a moment to finish; then they are released and run again. Ctrl+C stops. However this
    command ends, killed or by the closing of its terminal, its worker and its dashboard end with it.
    """
    app = chosen_app(app)
    if app is None:
        raise UsageError("no app given: run `taskharbor dev module:attribute`, for example app:harbor")
    shared = ["--url", url] if url and was_given("url") else []
    for module in chosen_include(include):
        shared += ["--include", module]
    worker = ["worker", app, "--concurrency", str(concurrency), "--grace", "5s", *shared]
    if no_scheduler:
        worker.append("--no-scheduler")
    commands = [worker + (["--queues", queues] if queues else [])]
    paths = watch or [Path.cwd()]
    if not (out.is_fancy if ui is None else ui) or not _can_serve(out):
        return run_and_reload(commands, paths, out.say)
    with dashboard.listen() as listener:
        out.say(f"dashboard: {dashboard.address_of(listener)}")
        commands.append([*dashboard.server_words(app, listener), "--log-level", "warning", *shared])
        return run_and_reload(commands, paths, out.say, listener)


def run_and_reload(
    commands: list[list[str]],
    paths: Sequence[Path],
    say: Callable[[str], object],
    listener: socket.socket | None = None,
) -> int:
    """Keep these commands running until a signal, and restart them when a file changes. The exit code.

    They inherit the listener: its address stays the same across restarts.
    """
    crew = Crew(commands, listener)
    say(f"watching {', '.join(str(path) for path in paths)}; Ctrl+C stops")
    _take_signals()
    try:
        crew.start()
        for changed in changes(paths):
            if changed:
                say(f"changed: {', '.join(sorted(path.name for path in changed))}; restarting")
                crew.stop()
                crew.start()
            elif (code := crew.ended()) is not None:
                say(f"ended with code {code}; save a file to restart")
    except KeyboardInterrupt:
        say("stopping")
    finally:
        _ignore_signals()
        crew.stop()
    return DONE


def _can_serve(out: Output) -> bool:
    if not dashboard.can_serve():
        out.say("no dashboard: pip install 'taskharbor[server]'")
        return False
    return True


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _take_signals() -> None:
    """SIGTERM and SIGHUP act like Ctrl+C; signals that were ignored at the start stay ignored."""
    for number in _STOP_SIGNALS:
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _ignore_signals() -> None:
    """Ignore signals until the process ends: a second one would leave the worker running."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class Crew:
    """The processes of one run."""

    def __init__(self, commands: list[list[str]], listener: socket.socket | None = None) -> None:
        self._commands = commands
        self._inherited = () if listener is None else (listener.fileno(),)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reported: set[int] = set()

    def start(self) -> None:
        # Ctrl+C reaches this process alone, which stops them in order. When it is killed, they go with it.
        self._processes = [started(words, pass_fds=self._inherited) for words in self._commands]

    def ended(self) -> int | None:
        """The exit code of a process that ended by itself; returned once."""
        for process in self._processes:
            if process.poll() is not None and process.pid not in self._reported:
                self._reported.add(process.pid)
                return process.returncode
        return None

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _interrupt(*_: object) -> None:
    _ignore_signals()  # here, not later: the next signal may come before anything else runs
    raise KeyboardInterrupt

"""taskharbor top: a live view of a store or server."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Annotated

import typer

from taskharbor.cli.parameters import parse_duration
from taskharbor.cli.session import Session, with_store_to_look
from taskharbor.cli.top import Throughput, look_at, snapshot
from taskharbor.cli.top_view import lines_of, screen
from taskharbor.errors import DriverUnavailable

_LEAST_SECONDS = 0.2


@with_store_to_look
async def command(
    session: Session,
    interval: Annotated[
        timedelta,
        typer.Option(
            "--interval", "-n", parser=parse_duration, metavar="DURATION", help="How often to refresh."
        ),
    ] = timedelta(seconds=2),
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, as without a terminal.")] = False,
) -> None:
    """Watch queues, workers, throughput and failures. Press q or Ctrl+C to quit.

    Rates are measured between two refreshes, also with --once. Jobs that are deleted as soon as they end are
    not counted.
    """
    seconds = max(interval.total_seconds(), _LEAST_SECONDS)
    if once or session.out.is_machine_readable or not (sys.stdin.isatty() and sys.stdout.isatty()):
        await _print_once(session, seconds)
    else:
        await _watch(session, seconds)


async def _print_once(session: Session, seconds: float) -> None:
    throughput = Throughput()
    throughput.add(await look_at(session.driver))
    await session.clock.sleep(seconds)
    look = await look_at(session.driver)
    shot = snapshot(look, throughput.add(look))
    session.out.document(shot, lines_of(shot, session.out.width))


async def _watch(session: Session, seconds: float) -> None:
    from rich.live import Live

    throughput, trouble = Throughput(), None
    look = await look_at(session.driver)
    shot = snapshot(look, throughput.add(look))
    console = session.out.console()
    with _keys() as quitting, Live(console=console, screen=True, auto_refresh=False) as live:
        while not quitting.is_set():
            live.update(screen(shot, console.width, console.height, trouble), refresh=True)
            # The second refresh comes soon: only then there are rates.
            await _pause(quitting, seconds if shot["throughput"] else min(seconds, 1.0))
            try:
                look = await look_at(session.driver)
                shot, trouble = snapshot(look, throughput.add(look)), None
            except DriverUnavailable as error:
                trouble = session.out.safe(str(error))  # keep the last figures, and show how old they are


async def _pause(quitting: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await quitting.wait()


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Set once `q` is pressed. Keys are not echoed meanwhile; the terminal is restored afterwards."""
    quitting, loop, stdin = asyncio.Event(), asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def pressed() -> None:
        keys = os.read(stdin, 64)
        if not keys or b"q" in keys.lower():
            quitting.set()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, pressed)
    try:
        yield quitting
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)

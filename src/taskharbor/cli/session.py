"""What every command shares: its common flags, a store to talk to, and errors turned into exit codes.

    @with_store
    async def show(session: Session, job_id: str) -> None: ...

gives the command the flags below besides its own, opens the store, and runs it. A command returns
nothing, or the exit code it wants.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from taskharbor.cli.config import file_settings
from taskharbor.cli.exits import DONE, ERROR, INTERRUPTED, code_of
from taskharbor.cli.output import Format, Output
from taskharbor.drivers import Driver, connect
from taskharbor.drivers.loading import DEFAULT_URL
from taskharbor.errors import ConfigurationError, TaskHarborError
from taskharbor.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor

P = ParamSpec("P")

# These mean the same everywhere, so their variables carry no command's name; the others get theirs in
# main.py.
_OUTPUT_FLAGS: dict[str, tuple[Any, Any]] = {
    "output": (
        Annotated[
            Format, typer.Option("--output", "-o", envvar="TASKHARBOR_OUTPUT", help="How to print data.")
        ],
        Format.TABLE,
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", envvar="TASKHARBOR_JSON", help="Short for --output json.")],
        False,
    ),
    "no_color": (
        Annotated[
            bool, typer.Option("--no-color", envvar="TASKHARBOR_NO_COLOR", help="No colours and no boxes.")
        ],
        False,
    ),
    "verbose": (
        Annotated[
            int,
            typer.Option(
                "--verbose",
                "-v",
                count=True,
                envvar="TASKHARBOR_VERBOSE",
                help="Say more; -vv shows tracebacks.",
            ),
        ],
        0,
    ),
}
UrlFlag = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="TASKHARBOR_URL",
        show_default=False,
        help="The store; env:NAME borrows another variable.",
    ),
]
AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]", envvar="TASKHARBOR_APP", help="module:attribute of a Harbor, like app:harbor."
    ),
]
AppFlag = Annotated[
    str | None,
    typer.Option("--app", "-A", metavar="APP", envvar="TASKHARBOR_APP", help="module:attribute of a Harbor."),
]
_URL_FLAG: dict[str, tuple[Any, Any]] = {"url": (UrlFlag, None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One command's open store and its way to speak."""

    driver: Driver
    out: Output
    clock: Clock
    harbor: Harbor | None = None
    """The app, for commands that were given one."""

    def now(self) -> datetime:
        return self.clock.now()


def with_output(
    function: Callable[Concatenate[Output, P], int | None | Coroutine[Any, Any, int | None]],
) -> Callable[..., None]:
    """A command that needs no store: it is given its Output."""

    def run(out: Output, given: dict[str, Any]) -> int | None:
        answer = function(out, **given)  # type: ignore[call-arg]  # ParamSpec cannot say "by name"
        return answer if answer is None or isinstance(answer, int) else asyncio.run(answer)

    return _command(function, _OUTPUT_FLAGS, run)


def with_store(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]],
) -> Callable[..., None]:
    """A command on an open store: it is given a Session. With a parameter `app`, on that app's store."""

    def run(out: Output, given: dict[str, Any]) -> int | None:
        url, app = given.pop("url"), given.get("app")
        if app is None:
            address = store_url(url)
            out.secrets.append(address)
            return asyncio.run(_in_session(connect(address), None, out, partial(function, **given)))
        from taskharbor.cli.apps import load_app

        harbor = load_app(app, url)
        return asyncio.run(_in_session(harbor.driver.another(), harbor, out, partial(function, **given)))

    return _command(function, {**_URL_FLAG, **_OUTPUT_FLAGS}, run)


async def _in_session(
    driver: Driver,
    harbor: Harbor | None,
    out: Output,
    body: Callable[[Session], Coroutine[Any, Any, int | None]],
) -> int | None:
    async with driver:
        return await body(Session(driver=driver, out=out, clock=SystemClock(), harbor=harbor))


def store_url(flag: str | None) -> str:
    """The URL of the store: the flag or its variable, then the settings file, then the default.

    Raises:
        ConfigurationError: env:NAME names a variable that is not set.
    """
    settings = None if flag else file_settings()
    chosen = flag or (DEFAULT_URL if settings is None else settings.values.url)
    if not chosen.startswith("env:"):
        return chosen
    name = chosen.removeprefix("env:")
    if not os.environ.get(name):
        raise ConfigurationError(f"{chosen} names the variable {name}, which is not set")
    return os.environ[name]


def _command(
    function: Callable[..., Any],
    flags: dict[str, tuple[Any, Any]],
    run: Callable[[Output, dict[str, Any]], int | None],
) -> Callable[..., None]:
    """The function typer sees: the body's own parameters after its first, then the common flags."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        for name, (hint, default) in flags.items()
    ]

    def command(**given: Any) -> None:
        out = Output(
            Format.JSON if given.pop("as_json") else given.pop("output", Format.TABLE),
            no_color=given.pop("no_color"),
            verbosity=given.pop("verbose"),
        )
        given.pop("output", None)
        _log_to_stderr(out.verbosity)
        raise typer.Exit(_guarded(out, lambda: run(out, given)))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + common
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def _guarded(out: Output, run: Callable[[], int | None]) -> int:
    """The exit code of a run; errors are told in their own words and never as a traceback."""
    try:
        return run() or DONE
    except TaskHarborError as error:
        out.error(error)
        return code_of(error)
    except TimeoutError as error:
        out.error(error)
        return code_of(error)
    except KeyboardInterrupt:
        out.say("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, typer.BadParameter):
        raise  # typer has an answer to these
    except Exception as error:  # noqa: BLE001 - the last stop before the user: any error ends in words
        out.error(error)
        if out.verbosity < 2:
            out.say(f"({type(error).__name__}: this was not expected; -vv shows where it happened)")
        return ERROR


def _log_to_stderr(verbosity: int) -> None:
    if verbosity:
        from taskharbor.cli.logs import LogFormat, LogLevel, log_to_stderr

        log_to_stderr(LogFormat.CONSOLE, LogLevel.DEBUG if verbosity > 1 else LogLevel.INFO)

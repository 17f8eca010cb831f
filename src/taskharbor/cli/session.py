"""What all commands share: the common flags, an open store, and exit codes for errors.

    @with_store
    async def show(session: Session, job_id: str) -> None: ...

adds the flags below to those of the command, opens the store, and runs it. A command returns None or an
exit code.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec
from urllib.parse import unquote, urlsplit

import typer

from taskharbor.cli.config import chosen_app
from taskharbor.cli.exit_codes import DONE, ERROR, INTERRUPTED, NoStore, code_of
from taskharbor.cli.output import Format, Output
from taskharbor.drivers import Driver, connect
from taskharbor.drivers.loading import DEFAULT_URL
from taskharbor.errors import TaskHarborError
from taskharbor.model.clock import Clock, SystemClock
from taskharbor.settings.store import store_url

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor

P = ParamSpec("P")

_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())

# These mean the same everywhere, so their variables carry no command's name; the others get theirs in
# main.py.
_OUTPUT_FLAGS: dict[str, tuple[Any, Any]] = {
    "output": (
        Annotated[Format, typer.Option("--output", "-o", envvar="TASKHARBOR_OUTPUT", help="Output format.")],
        Format.TABLE,
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", envvar="TASKHARBOR_JSON", help="Same as --output json.")],
        False,
    ),
    "no_color": (
        Annotated[
            bool,
            typer.Option("--no-color", envvar="TASKHARBOR_NO_COLOR", help="Print without colors and boxes."),
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
                help="Print more details; -vv prints tracebacks.",
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
        help="URL of the store; env:NAME reads it from variable NAME.",
    ),
]
AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        envvar="TASKHARBOR_APP",
        help="The Harbor to use, as module:attribute, e.g. app:harbor.",
    ),
]
IncludeFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="MODULE",
        envvar="TASKHARBOR_INCLUDE",
        help="Also import this module and its submodules, which define tasks. Repeatable.",
    ),
]
AppFlag = Annotated[
    str | None,
    typer.Option(
        "--app",
        "-A",
        metavar="APP",
        envvar="TASKHARBOR_APP",
        help="Use the store and tasks of this app (module:attribute).",
    ),
]
_STORE_FLAGS: dict[str, tuple[Any, Any]] = {"url": (UrlFlag, None), "app": (AppFlag, None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The open store and the output of one command."""

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
    """A command that needs no store; it gets an Output."""

    def run(out: Output, given: dict[str, Any]) -> int | None:
        answer = function(out, **given)  # type: ignore[call-arg]  # ParamSpec cannot say "by name"
        return answer if answer is None or isinstance(answer, int) else asyncio.run(answer)

    return _command(function, _OUTPUT_FLAGS, run)


def with_store(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]],
) -> Callable[..., None]:
    """A command on an existing store; it gets a Session."""
    return _on_store(function, makes=False)


def with_store_to_look(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]],
) -> Callable[..., None]:
    """The same for commands that only read: they do not change the store."""
    return _on_store(function, makes=False, looks=True)


def with_store_made(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]],
) -> Callable[..., None]:
    """The same for commands that may create the store."""
    return _on_store(function, makes=True)


def with_any_schema(
    function: Callable[Concatenate[Session, P], Coroutine[Any, Any, int | None]], *, makes: bool
) -> Callable[..., None]:
    """The same for commands about the schema, which may be old or missing."""
    return _on_store(function, makes=makes, any_schema=True, looks=not makes)


def _on_store(
    function: Callable[..., Coroutine[Any, Any, int | None]],
    *,
    makes: bool,
    any_schema: bool = False,
    looks: bool = False,
) -> Callable[..., None]:
    def run(out: Output, given: dict[str, Any]) -> int | None:
        address, harbor = chosen_store(out, given.pop("url"), given.pop("app"))
        if not makes:
            refuse_missing(address, harbor)
        driver = connect(address) if harbor is None else harbor.driver.another()
        if any_schema and (makes or _opens_old_schemas(driver)):
            open_it = driver.open_unmigrated
        elif looks:
            open_it = driver.open_to_look
        else:
            open_it = driver.open if makes else partial(_open_store_there, driver)
        return asyncio.run(_in_session(driver, open_it, harbor, out, partial(function, **given)))

    return _command(function, {**_STORE_FLAGS, **_OUTPUT_FLAGS}, run)


def _opens_old_schemas(driver: Driver) -> bool:
    """Whether it has an `open_unmigrated` of its own; that of the contract opens as usual, and may write."""
    return type(driver).open_unmigrated is not Driver.open_unmigrated


def chosen_store(out: Output, url: str | None, app: str | None) -> tuple[str, Harbor | None]:
    """The address of the store that is meant, and the app when one was named.

    The command line takes precedence over the environment, and that over the settings file.
    """
    if app is not None and was_given("url") and not was_given("app"):
        app = None
    if app is None and url is None:
        app = chosen_app(None)
    if app is None:
        harbor = None
    else:
        from taskharbor.cli.apps import load_app

        harbor = load_app(app, url)
    address = store_url(url) if harbor is None else harbor.url or ""
    out.secrets.append(address)
    return address, harbor


async def _open_store_there(driver: Driver) -> Driver:
    """A file with other content must not become a store just because it was named."""
    if driver.capabilities.one_writer:
        async with await driver.another().open_to_look():
            pass
    return await driver.open()


async def _in_session(
    driver: Driver,
    open_it: Callable[[], Coroutine[Any, Any, Driver]],
    harbor: Harbor | None,
    out: Output,
    body: Callable[[Session], Coroutine[Any, Any, int | None]],
) -> int | None:
    async with await open_it():
        return await body(Session(driver=driver, out=out, clock=SystemClock(), harbor=harbor))


def was_given(name: str) -> bool:
    """Whether this parameter was given on the command line, not in the environment or a file."""
    return name in _given.get()


def refuse_missing(address: str, harbor: Harbor | None = None) -> None:
    """A command that only looks makes no store: a file that is not there is most likely a wrong address.

    Raises:
        NoStore: it is a file, and it does not exist; the message says who named it, and what to do.
    """
    if not address.startswith("sqlite:"):
        return
    path = unquote(urlsplit(address).path.removeprefix("/"))
    if path and not os.path.exists(path):
        raise NoStore(f"there is no store at {os.path.abspath(path)}{_where_from(address, harbor)}")


def _where_from(address: str, harbor: Harbor | None) -> str:
    """Who named the file, and what helps then."""
    if harbor is None and address == DEFAULT_URL and not was_given("url"):
        return ", the default; choose yours with --url URL or --app APP"
    who = "--url" if was_given("url") else "the environment or settings file" if harbor is None else "the app"
    return (
        f" (named by {who}). Check the address and the folder you are in; "
        "a store is made when the first job is enqueued or a worker starts"
    )


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

    def command(context: typer.Context, **given: Any) -> None:
        sources: dict[str, Any] = {name: context.get_parameter_source(name) for name in given}
        _given.set(frozenset(name for name, source in sources.items() if source.name == "COMMANDLINE"))
        out = Output(
            Format.JSON if given.pop("as_json") else given.pop("output", Format.TABLE),
            no_color=given.pop("no_color"),
            verbosity=given.pop("verbose"),
        )
        given.pop("output", None)
        _log_to_stderr(out.verbosity)
        raise typer.Exit(_guarded(out, lambda: run(out, given)))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + common
    parameters.insert(
        0, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return command


def _guarded(out: Output, run: Callable[[], int | None]) -> int:
    """Run and return the exit code. Errors are printed as one message, without a traceback."""
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
            out.say(f"({type(error).__name__}: unexpected error; -vv shows the traceback)")
        return ERROR


def _log_to_stderr(verbosity: int) -> None:
    if verbosity:
        from taskharbor.observe.logs import LogFormat, LogLevel, log_to_stderr

        log_to_stderr(LogFormat.CONSOLE, LogLevel.DEBUG if verbosity > 1 else LogLevel.INFO)

"""FlaskHarbor: a harbor for Flask. Tasks are declared at import, `init_app(app)` names the store.

Each attempt runs in an application context of its own, in the event loop, in a thread or in a process.
`flask taskharbor …` is our command line with the application filled in.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from taskharbor.errors import ConfigurationError

try:
    import click
    from flask import Flask, current_app, has_app_context
    from flask.cli import NoAppException, ScriptInfo, pass_script_info
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"this needs {error.name}, which is not installed: pip install 'taskharbor[flask]'"
    ) from error

from taskharbor.cli.main import main
from taskharbor.harbor import Harbor
from taskharbor.middleware import running
from taskharbor.model.clock import Clock
from taskharbor.model.codec import Codec
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import DEFAULT_QUEUE
from taskharbor.model.retry import RetryPolicy
from taskharbor.model.secrets import masked
from taskharbor.settings.store import store_url
from taskharbor.worker.executors.contract import is_coroutine_function

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTENSION = "taskharbor"
"""The name of the harbor in `app.extensions`."""

SETTING = "TASKHARBOR_URL"

_entered: ContextVar[Any] = ContextVar("taskharbor_flask_attempt", default=None)
"""The attempt that already has its application context: a task that calls another one shares it."""

_of_command: Flask | None = None
"""The application that the command line of this process was called for."""


class FlaskHarbor(Harbor):
    """A harbor whose store is named by the configuration of a Flask application.

    `init_app` reads `TASKHARBOR_URL` from `app.config`, else from the environment or the settings file. Two
    applications in one process may share a FlaskHarbor if they name the same store.
    """

    _missing_call = "init_app(app)"

    def __init__(
        self,
        app: Flask | None = None,
        *,
        codec: Codec | None = None,
        retry: RetryPolicy = RetryPolicy(),
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        default_queue: str = DEFAULT_QUEUE,
        include: Sequence[str] = (),
    ) -> None:
        super().__init__(
            codec=codec,
            retry=retry,
            clock=clock,
            entropy=entropy,
            default_queue=default_queue,
            include=include,
            lazy=True,
        )
        self._app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Use the store of this application, run attempts in its context, and add `flask taskharbor`.

        Raises:
            ConfigurationError: the setting is no URL, or another application gave this harbor another store.
        """
        url = _url_of(app)
        if not self.is_attached:
            self.attach(url, clock=self.clock)
        elif self.url is not None and self.url != url:
            raise ConfigurationError(
                f"this FlaskHarbor uses {masked(self.url)}, and {SETTING} of another application in this "
                f"process is {masked(url)}: give that application a FlaskHarbor of its own"
            )
        self._app = app
        app.extensions[EXTENSION] = self
        app.cli.add_command(command)

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if is_coroutine_function(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with self._context():
                    return await function(*args, **kwargs)

            return run_async

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._context():
                return function(*args, **kwargs)

        return run

    def _context(self) -> AbstractContextManager[Any]:
        """A new application context for an attempt; nothing for a plain call of a task's function."""
        attempt = running.get(None)
        return nullcontext() if attempt is None or _entered.get() is attempt else self._entered_for(attempt)

    @contextmanager
    def _entered_for(self, attempt: object) -> Iterator[None]:
        token = _entered.set(attempt)
        try:
            with self._application().app_context():
                yield
        finally:
            _entered.reset(token)

    def _application(self) -> Flask:
        """The application of the worker; in a process of a handler it is made there, as `flask` finds it."""
        if has_app_context() and current_app.extensions.get(EXTENSION) is self:
            found: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
            return found
        if self._app is None:
            _loaded()
        if self._app is None:
            raise ConfigurationError(
                "the Flask application that FLASK_APP names does not call init_app of this FlaskHarbor"
            )
        return self._app


def _url_of(app: Flask) -> str:
    named = app.config.get(SETTING)
    if named is not None and not isinstance(named, str):
        raise ConfigurationError(f"{SETTING} in app.config must be the URL of a store, not {named!r:.80}")
    return store_url(named)


def _loaded() -> Flask:
    """The application of this command, else the one that `flask` would find here.

    Raises:
        ConfigurationError: there is none, or it could not be imported.
    """
    try:
        return _of_command or ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    except NoAppException as error:
        raise ConfigurationError(f"no Flask application was found, so set FLASK_APP: {error}") from error


@click.command(
    "taskharbor",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Workers, jobs, queues: TaskHarbor's command line.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_script_info
def command(info: ScriptInfo, words: tuple[str, ...]) -> None:
    """TaskHarbor's command line for this application: `flask taskharbor worker`."""
    global _of_command  # noqa: PLW0603 - one command per process
    _of_command = info.load_app()
    if info.app_import_path:  # for processes that this one starts
        os.environ["FLASK_APP"] = info.app_import_path
    os.environ["TASKHARBOR_APP"] = f"{__name__}:harbor"
    main(words)


def __getattr__(name: str) -> Any:
    """`harbor` is that of the application: what the command line imports, in every process."""
    if name != "harbor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = _loaded()
    if EXTENSION not in app.extensions:
        raise ConfigurationError(f"the Flask application {app.name!r} has no FlaskHarbor: call init_app(app)")
    return app.extensions[EXTENSION]

"""From APP on the command line to a Harbor: `module:attribute`, or `module` alone."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from taskharbor.cli.config import chosen_include
from taskharbor.cli.session import was_given
from taskharbor.drivers.loading import DEFAULT_URL
from taskharbor.errors import ConfigurationError
from taskharbor.harbor import Harbor
from taskharbor.model.secrets import masked
from taskharbor.model.text import with_article
from taskharbor.settings.store import store_url
from taskharbor.tasks.discovery import import_modules, what_raised
from taskharbor.worker.worker import Worker

URL_VARIABLE = "TASKHARBOR_URL"

_USUAL_NAMES = ("harbor", "app")


def load_app(reference: str, url: str | None = None, include: Sequence[str] | None = None) -> Harbor:
    """Import the module, with the current folder on the path, and return its Harbor with all tasks.

    `module` alone means `module:harbor`, then `module:app`. `url` is the store for a Harbor that names
    none. `include` names more modules that define tasks.

    Raises:
        ConfigurationError: there is no such module or Harbor, or the command line and the code name
            different stores.
    """
    module, attribute, found = _named(reference, url, Harbor)
    if not isinstance(found, Harbor):
        raise ConfigurationError(_not_there(module, attribute, found))
    if url is not None and not found.is_attached:
        found.attach(url)
    elif url is not None:
        _compare_stores(reference, found, store_url(url))
    found.import_tasks(*chosen_include(include))
    return found


def load_worker(reference: str, url: str | None, include: Sequence[str] | None) -> Harbor | Worker:
    """The same, but it may also be a Worker built in code, with its own settings."""
    _, _, found = _named(reference, url, Harbor)
    if not isinstance(found, Worker):
        return load_app(reference, url, include)
    if url is not None and was_given("url"):
        raise ConfigurationError(f"--url was given, but {reference} is a Worker with its own store")
    import_modules(chosen_include(include))
    return found


def _named(reference: str, url: str | None, usual: type[Any]) -> tuple[ModuleType, str, Any]:
    """The module, the attribute and its value; without an attribute, the first usual name that exists."""
    _export_store(url)
    name, colon, attribute = reference.partition(":")
    if not name or (colon and not attribute):
        raise ConfigurationError(f"{reference!r} must look like module:attribute, for example app:harbor")
    module = _imported(name)
    if attribute:
        return module, attribute, _at(module, attribute)
    fitting = (one for word in _USUAL_NAMES if isinstance(one := _at(module, word), usual))
    return module, attribute, next(fitting, None)


def _export_store(url: str | None) -> None:
    """Put the chosen store into the environment, for the app's code to find.

    Not the default: code that reads the variable may have its own default.
    """
    if url is None and os.environ.get(URL_VARIABLE):
        return
    chosen = store_url(url)
    if url is not None or chosen != DEFAULT_URL:
        os.environ[URL_VARIABLE] = chosen


def _compare_stores(reference: str, harbor: Harbor, url: str) -> None:
    """Ignoring --url would run the command on the wrong store; a variable is for apps that name none."""
    if harbor.url is not None and _whole(harbor.url) == _whole(url):
        return
    there = "has a driver of its own"
    if harbor.url is not None:
        there = f"names another store in its code, {masked(harbor.url)}"
    if was_given("url"):
        raise ConfigurationError(
            f"--url {masked(url)} was given, but {reference} {there}: remove one of them"
        )
    sys.stderr.write(
        f"warning: {URL_VARIABLE} is {masked(url)}, but {reference} {there}. That one is used; "
        "write `Harbor()` without a URL to use the variable\n"
    )


def _whole(url: str) -> str:
    """One spelling per SQLite file, to compare URLs; options are kept."""
    if not url.startswith("sqlite:"):
        return url
    parts = urlsplit(url)
    return parts._replace(path=os.path.abspath(unquote(parts.path.removeprefix("/")))).geturl()


def put_here_on_path() -> None:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(name: str) -> ModuleType:
    put_here_on_path()
    if name.endswith(".py") or "/" in name:
        hint = name.removesuffix(".py").replace("/", ".").strip(".")
        raise ConfigurationError(f"{name!r} is a file name; name the module instead: {hint}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"no module named {error.name!r} in {os.getcwd()} or the installed packages"
            ) from None
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"importing {name!r} failed at {what_raised(error)}; -vv shows the whole traceback"
    )


def _at(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _not_there(module: ModuleType, attribute: str, found: object) -> str:
    name = module.__name__
    harbors = [f"{name}:{key}" for key, value in vars(module).items() if isinstance(value, Harbor)]
    if found is not None:
        what = f"{name}:{attribute} is {with_article(type(found).__name__)}, not a Harbor"
    elif attribute:
        what = f"there is no {attribute!r} in the module {name!r}"
    else:
        what = f"the module {name!r} has no Harbor named harbor or app"
    hint = f"Harbor objects in it: {', '.join(harbors)}" if harbors else "there is no Harbor object in it"
    return f"{what}; {hint}"

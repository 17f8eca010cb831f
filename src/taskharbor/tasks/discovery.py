"""Importing the modules that hold tasks: a task exists for a program once its module was imported."""

from __future__ import annotations

import importlib
import os
import pkgutil
import traceback
from collections.abc import Iterable, Iterator
from types import ModuleType

from taskharbor.errors import ConfigurationError


def import_modules(names: Iterable[str]) -> list[ModuleType]:
    """Import these modules; of a package everything beneath it, too, but for what is run as a program.

    Raises:
        ConfigurationError: one of them is not there, or its code raised; the message says which.
    """
    found = []
    for name in names:
        top = _imported(name)
        found += [top, *(_imported(inner) for inner in _beneath(top))]
    return found


def _beneath(package: ModuleType) -> Iterator[str]:
    """Every module in a package, by its full name, packages before what is in them."""
    for entry in pkgutil.iter_modules(getattr(package, "__path__", None) or (), f"{package.__name__}."):
        if entry.name.rpartition(".")[2] == "__main__":
            continue
        yield entry.name
        if entry.ispkg:
            yield from _beneath(_imported(entry.name))


def _imported(name: str) -> ModuleType:
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"include {name!r:.80} is no name of a module, such as app.tasks")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"include {name!r}: there is no module {error.name!r}") from None
        raise ConfigurationError(f"include {name!r} failed at {what_raised(error)}") from error
    except (Exception, SystemExit) as error:
        # The module is the user's: whatever it raises, they want to see where.
        raise ConfigurationError(f"include {name!r} failed at {what_raised(error)}") from error


def what_raised(error: BaseException) -> str:
    """What a module of the user's raised, and where: `app.py, line 3: NameError: …`."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{_place(error)}: {what}"


def _place(error: BaseException) -> str:
    """File and line of the last frame in the user's own code: in this folder, not an installed package."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and frame.filename != __file__
    ]
    own = [frame for frame in frames if _is_own(frame.filename)]
    last = (own or frames)[-1:]
    return f"{last[0].filename}, line {last[0].lineno}" if last else "an unknown line"


def _is_own(filename: str) -> bool:
    path = os.path.abspath(filename)
    return path.startswith(os.getcwd() + os.sep) and "site-packages" not in path

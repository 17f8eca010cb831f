"""Importing the modules that hold tasks: a task exists for a program once its module was imported."""

from __future__ import annotations

import importlib
import pkgutil
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
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"include {name!r}: there is no module {error.name!r}") from None
        raise ConfigurationError(f"include {name!r}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"include {name!r} is no name of a module: {error}") from error
    except Exception as error:
        # The module is the user's: whatever it raises, they want to see where.
        raise ConfigurationError(f"include {name!r}: {type(error).__name__}: {error}") from error

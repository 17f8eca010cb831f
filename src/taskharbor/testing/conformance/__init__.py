"""The conformance kit: the promises of the driver contract as tests for any driver.

    # tests/test_conformance.py in the project of a driver
    import pytest
    from taskharbor.testing.conformance import *  # noqa: F403

    @pytest.fixture
    async def driver():
        async with EtcdDriver("etcd://localhost") as driver:
            yield driver

The fixture returns an open driver on a fresh, empty namespace, once per case. The kit calls
only the contract, passes an explicit `now` (some races also use the clock of the store) and
never sleeps. It skips a case only when the
driver does not declare the capability it tests, or when an optional fixture is missing:
`driver_url` (by which other processes open the store), `other_namespace_url`, and `lose_record`, an
async function that takes the record of a job out of the store and leaves what points to it. Async tests need
a plugin such as pytest-asyncio in auto mode; give the star import a file of its own, because the kit
also brings the fixture `invariants_hold`, which checks all records after every case.

Every module of this package but `kit` is one topic. The docstring of a case starts with its
numbers, e.g. "E05: …"; the letter is the topic.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import pytest

_modules = sorted(module.name for module in iter_modules(__path__))
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _modules))
from taskharbor.testing.conformance.invariants import invariants_hold  # noqa: E402


def _cases_of(topic: ModuleType) -> dict[str, object]:
    """The cases that a module defines itself."""
    return {
        name: value
        for name, value in vars(topic).items()
        if name.startswith("test_") and getattr(value, "__module__", None) == topic.__name__
    }


_cases: dict[str, object] = {}
for _name in _modules:
    _found = _cases_of(import_module(f"{__name__}.{_name}"))
    if _twice := _cases.keys() & _found.keys():
        raise ImportError(
            f"two topics of the kit define {sorted(_twice)}; every case needs a name of its own"
        )
    _cases |= _found

globals().update(_cases)
# Assembled, so that no case can be forgotten.
__all__ = [invariants_hold.__name__, *sorted(_cases)]  # noqa: PLE0604

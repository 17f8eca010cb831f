"""UnattachedDriver: the place of a store that is named later. Any use says which call is missing."""

from __future__ import annotations

from typing import Any, NoReturn

from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import DriverInfo
from taskharbor.drivers.relay import Carried
from taskharbor.errors import ConfigurationError


class UnattachedDriver(Carried):
    """What a harbor has until its store is named. It cannot be opened.

    Args:
        missing_call: The call that names the store, for the message.
    """

    def __init__(self, missing_call: str) -> None:
        super().__init__(Capabilities())
        self._missing_call = missing_call

    def another(self) -> Driver:
        self._refuse()

    def check_tx(self, tx: Any) -> None:
        self._refuse()

    async def do_open(self) -> None:
        self._refuse()

    def migration_scripts(self) -> list[tuple[str, str]]:
        self._refuse()

    def migration_ledger(self) -> NoReturn:
        self._refuse()

    async def do_info(self) -> DriverInfo:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"this harbor has no store yet: call {self._missing_call} first; nothing was done"
        )

"""The contract spoken to a TaskHarbor server, so that workers and clients need no way to the store."""

from taskharbor.drivers.http.driver import HttpDriver

__all__ = ["HttpDriver"]

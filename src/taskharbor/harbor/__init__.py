"""The object users hold."""

from taskharbor.harbor.harbor import Harbor
from taskharbor.settings.store import store_url

__all__ = ["Harbor", "store_url"]

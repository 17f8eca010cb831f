"""The object users hold."""

from taskharbor.harbor.harbor import Harbor, store_url

__all__ = ["Harbor", "store_url"]

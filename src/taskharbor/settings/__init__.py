"""Settings from the environment and from files."""

from taskharbor.settings.loading import Settings, Source, load_settings
from taskharbor.settings.parsing import Secret, Size, size
from taskharbor.settings.schema import SETTINGS, Setting, Values
from taskharbor.settings.store import store_url

__all__ = [
    "SETTINGS",
    "Secret",
    "Setting",
    "Settings",
    "Size",
    "Source",
    "Values",
    "load_settings",
    "size",
    "store_url",
]

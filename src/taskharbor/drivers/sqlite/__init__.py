"""The SQLite driver: the embedded default. Read driver.py first, then sql/migrations/0001_schema.sql."""

from taskharbor.drivers.sqlite.driver import SqliteDriver

__all__ = ["SqliteDriver"]

"""The Postgres driver: many machines, one contract. Read driver.py first."""

from taskharbor.drivers.postgres.driver import PostgresDriver

__all__ = ["PostgresDriver"]

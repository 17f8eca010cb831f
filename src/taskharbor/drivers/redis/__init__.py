"""Many machines on one Redis or Valkey, at memory speed."""

from taskharbor.drivers.redis.driver import RedisDriver

__all__ = ["RedisDriver"]

"""The commands that a server user needs: single ones, none of which reaches beyond its keys.

No categories: @write and @read include FLUSHDB, SWAPDB and KEYS, and CONFIG GET shows passwords.
docs/reference/redis.md prints this list, and the kit runs as a user with nothing else.
"""

from __future__ import annotations

COMMANDS = (
    "select", "info", "time", "evalsha", "script|load",
    "get", "set", "del", "exists", "expire", "expireat", "ttl",
    "hget", "hgetall", "hmget", "hset", "hsetnx", "hdel", "hexists", "hincrby", "hvals",
    "sadd", "srem", "smembers",
    "lpush", "rpush", "llen", "lrange", "lrem", "blpop",
    "zadd", "zrem", "zcard", "zcount", "zrange", "zrangebylex", "zrangebyscore", "zrevrangebylex",
    "zrevrangebyscore",
    "zremrangebylex", "zremrangebyrank", "zremrangebyscore",
)  # fmt: skip
ON_CLUSTERS = ("cluster|slots",)
WITH_SENTINELS = ("role",)


def allowed(*further: str) -> list[str]:
    """In the form of ACL SETUSER."""
    return [f"+{command}" for command in (*COMMANDS, *further)]

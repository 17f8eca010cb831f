"""What a user of the server must be allowed: single commands, none of which reaches beyond its keys.

No category is among them: @write and @read have FLUSHDB, SWAPDB and KEYS in them. CONFIG GET tells passwords.
docs/reference/redis.md prints this list, and the kit runs as a user who has nothing else.
"""

from __future__ import annotations

COMMANDS = (
    "select", "info", "time", "evalsha", "script|load",
    "get", "set", "del", "expire",
    "hget", "hmget", "hset", "hsetnx", "hdel", "hexists", "hincrby", "hvals",
    "sadd", "srem", "smembers",
    "lpush", "rpush", "llen", "lrange", "lrem", "blpop",
    "zadd", "zrem", "zcard", "zcount", "zrange", "zrangebylex", "zrangebyscore", "zrevrangebyscore",
    "zremrangebylex", "zremrangebyrank", "zremrangebyscore",
)  # fmt: skip
ON_CLUSTERS = ("cluster|slots",)
WITH_SENTINELS = ("role",)


def allowed(*further: str) -> list[str]:
    """As ACL SETUSER wants them."""
    return [f"+{command}" for command in (*COMMANDS, *further)]

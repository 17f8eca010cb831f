"""What a server is and whether jobs are safe on it: read at every open, shown by `info`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

import msgspec

from taskharbor.drivers.redis.address import Address
from taskharbor.drivers.redis.failover import followed_until, parse_info
from taskharbor.drivers.redis.primary import Primary
from taskharbor.errors import DriverError, StoreRefused
from taskharbor.model.clock import instant

log = logging.getLogger("taskharbor.drivers.redis")

_OLDEST = (7, 0)
_SAFE_POLICY = "noeviction"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server at one instant."""

    at: datetime
    product: str
    version: str
    role: str
    policy: str
    max_memory: int
    used_memory: int
    appends: bool
    fsync: str  # always, everysec, no; '' if the server does not say
    shows_settings: bool = True  # True if our user may read CONFIG, which alone has fsync and save
    saves: bool
    replicas: int
    took_over_at: int | None  # the offset up to which it followed another primary; None: it never did

    @property
    def durability(self) -> str:
        """D3: on disk before the answer. D2: within two seconds. D1: at a clean stop. D0: never."""
        if self.appends:
            return "D3" if self.fsync == "always" else "D2" if self.fsync in ("everysec", "") else "D1"
        return "D1" if self.saves else "D0"

    @property
    def details(self) -> dict[str, str]:
        used = f"{self.used_memory / 1048576:.0f} MiB"
        if self.max_memory:
            used += f" of {self.max_memory / 1048576:.0f} MiB"
        kept = f"AOF {self.fsync or 'on'}" if self.appends else "snapshots" if self.saves else "nothing kept"
        found = {
            "role": self.role,
            "persistence": kept,
            "maxmemory_policy": self.policy,
            "memory": used,
            "replicas": str(self.replicas),
        }
        if self.took_over_at is not None:
            found["took_over"] = (
                f"with what the primary before it had written up to offset {self.took_over_at}"
            )
        return found


async def look(primary: Primary) -> Health:
    """Ask the server. What the user may not read is taken from INFO, or counts as absent."""
    time, info_text = await primary.together([("TIME",), ("INFO",)])
    info = parse_info(info_text)
    settings = await _settings(primary)
    has_saved = int(info.get("rdb_last_bgsave_time_sec", "-1")) >= 0  # since the server started
    return Health(
        at=instant(int(time[0]) * 1_000_000 + int(time[1])),
        product="Valkey" if "valkey_version" in info else "Redis",
        version=info.get("valkey_version") or info.get("redis_version", "?"),
        role=info.get("role", "?"),
        policy=settings.get("maxmemory-policy") or info.get("maxmemory_policy", _SAFE_POLICY),
        max_memory=int(info.get("maxmemory", "0")),
        used_memory=int(info.get("used_memory", "0")),
        appends=info.get("aof_enabled") == "1",
        fsync=settings.get("appendfsync", ""),
        shows_settings=bool(settings),
        saves=bool(settings.get("save", "")) if settings else has_saved,
        replicas=int(info.get("connected_slaves", "0")),
        took_over_at=followed_until(info),
    )


def check(health: Health, address: Address) -> None:
    """Refuse a server that may lose jobs or cannot take them; `unsafe=true` accepts the former."""
    version = tuple(int(part) for part in health.version.split(".")[:2] if part.isdigit())
    if version and version < _OLDEST:
        raise StoreRefused(f"{health.product} {health.version} is too old; 7.0 or newer is needed")
    if health.role == "slave":
        raise StoreRefused("this server is a read-only replica; connect to the primary, or by its sentinels")
    if address.unsafe:
        return
    if refusal := evicts(health.policy):
        raise StoreRefused(refusal)
    asked = address.durability
    if asked is not None and health.durability < asked:
        kept = health.details["persistence"]
        hidden = "" if health.shows_settings else f" Our user may not see more of it: allow {_SEES}."
        raise StoreRefused(
            f"the server keeps jobs by class {health.durability} ({kept}), {asked} was asked for: "
            f"{_HOW[asked]}, ask for less, or say unsafe=true in the URL.{hidden}"
        )


def advise(health: Health, address: Address) -> None:
    """Warn once per process and server what may be lost, and which setting helps.

    No warning if the URL asks for a durability class: then it was chosen.
    """
    if not health.shows_settings and health.appends and _is_first(address, "settings"):
        log.info(
            "%s does not show our user how often it flushes, so jobs count as kept by class %s. Give the "
            "user %s to show it; that also shows the passwords of the server",
            address.shown,
            health.durability,
            _SEES,
        )
    loses = _LOSES.get(health.durability)
    is_chosen = address.durability is not None or address.unsafe
    if loses is None or is_chosen or not _is_first(address, health.durability):
        return
    log.warning(
        "%s keeps jobs only by class %s (%s): %s. %s; durability=%s in the URL accepts it as it is",
        address.shown,
        health.durability,
        health.details["persistence"],
        loses,
        HOW_TO_KEEP,
        health.durability,
    )


def _is_first(address: Address, what: str) -> bool:
    if (warning := (address.shown, what)) in _warned:
        return False
    _warned.add(warning)
    return True


def evicts(policy: str) -> str | None:
    """Why this eviction policy is refused; None for noeviction."""
    if policy == _SAFE_POLICY:
        return None
    return (
        f"maxmemory-policy is {policy}: the server may throw jobs away. Set it to noeviction, "
        "or say unsafe=true in the URL"
    )


def policy_in(info: bytes) -> str:
    """The eviction policy in an INFO reply."""
    return parse_info(info).get("maxmemory_policy", _SAFE_POLICY)


HOW_TO_KEEP = "Set `appendonly yes` in the server's configuration (now: CONFIG SET appendonly yes)"
_SEES = "+config|get"
_LOSES = {
    "D0": "they are gone when it stops",
    "D1": "what came after the last snapshot is gone when it dies",
}
_warned: set[tuple[str, str]] = set()
_HOW = {
    "D1": "set save or appendonly yes",
    "D2": "set appendonly yes",
    "D3": "set appendonly yes and appendfsync always",
}


async def _settings(primary: Primary) -> dict[str, str]:
    """Settings that only CONFIG has; empty if the user may not read it."""
    try:
        found = await primary.command("CONFIG", "GET", "maxmemory-policy", "appendfsync", "save")
    except DriverError:
        return {}
    pairs = found if not isinstance(found, Mapping) else [part for pair in found.items() for part in pair]
    return {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}

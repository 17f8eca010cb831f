"""The URL of a Redis or Valkey store: hosts, credentials, namespace and options."""

from __future__ import annotations

import re
import ssl
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from taskharbor.errors import ConfigurationError

DEFAULT_NAMESPACE = "taskharbor"
DEFAULT_PORT, SENTINEL_PORT = 6379, 26379
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLASSES = ("D0", "D1", "D2", "D3")
_TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key", "tls_verify")
_KNOWN = frozenset(
    {
        "namespace",
        "durability",
        "unsafe",
        "timeout",
        "connect_timeout",
        "db",
        "master",
        "sentinel_username",
        "sentinel_password",
        *_TLS_OPTIONS,
    }
)
_MODES = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "valkey": ("single", False),
    "valkeys": ("single", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}

Host = tuple[str, int]


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store is. The password is never shown."""

    hosts: tuple[Host, ...]
    mode: str = "single"  # single, cluster, sentinel
    namespace: str = DEFAULT_NAMESPACE
    database: int = 0
    username: str | None = None
    password: str | None = None
    master: str | None = None  # the primary's name as the sentinels know it
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_verify: bool = True
    durability: str | None = None  # the weakest durability class to accept; None: any
    unsafe: bool = False  # open even if the server may lose or refuse jobs
    timeout: float = 10.0
    connect_timeout: float = 5.0

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address without secrets, for messages and logs."""
        scheme = "rediss" if self.tls else "redis"
        scheme += "" if self.mode == "single" else f"+{self.mode}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        where = f"/{self.master}" if self.master else f"/{self.database}"
        return f"{scheme}://{hosts}{where}?namespace={self.namespace}"

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.tls_ca)
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


def address_of(url: str) -> Address:
    """Parse a store URL. Refuses what makes no sense before anything is connected."""
    parts = urlsplit(url)
    mode, tls = _MODES[parts.scheme]
    options_given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(options_given.keys() - _KNOWN):
        raise ConfigurationError(
            f"{unknown[0]!r} is no option of a Redis URL; known: {', '.join(sorted(_KNOWN))}"
        )
    options: dict[str, Any] = {"mode": mode, "tls": tls, **_credentials(parts), **_tls(options_given, tls)}
    options["hosts"] = _hosts(parts, SENTINEL_PORT if mode == "sentinel" else DEFAULT_PORT)
    path = unquote(parts.path.strip("/"))
    if mode == "sentinel":
        master, _, path = path.partition("/")
        options["master"] = options_given.get("master", master) or _missing_master()
        options["sentinel_username"] = options_given.get("sentinel_username")
        options["sentinel_password"] = options_given.get("sentinel_password")
    options["database"] = _database(options_given.get("db", path), mode)
    if "namespace" in options_given:
        options["namespace"] = _namespace(options_given["namespace"])
    if "durability" in options_given:
        options["durability"] = _durability(options_given["durability"])
    if "unsafe" in options_given:
        options["unsafe"] = _yes_or_no("unsafe", options_given["unsafe"])
    for name in ("timeout", "connect_timeout"):
        if name in options_given:
            options[name] = _seconds(name, options_given[name])
    return Address(**options)


def _credentials(parts: SplitResult) -> dict[str, str | None]:
    who = parts.netloc.rpartition("@")[0]
    username, _, password = who.partition(":")
    return {
        "username": unquote(username) if username and password else None,
        "password": unquote(password) if password else None,
    }


def _hosts(parts: SplitResult, port: int) -> tuple[Host, ...]:
    """One host, or several separated by commas."""
    places = parts.netloc.rpartition("@")[2] or "localhost"
    return tuple(_host(place, port) for place in places.split(","))


def _host(place: str, default: int) -> Host:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", place)
    if match is None or int(match[2] or 0) > 65535:
        raise ConfigurationError(f"{place!r} in the store URL is not host:port")
    return match[1].strip("[]") or "localhost", int(match[2] or default)


def _tls(options_given: dict[str, str], tls: bool) -> dict[str, Any]:
    given = {name: options_given[name] for name in _TLS_OPTIONS if name in options_given}
    if given and not tls:
        raise ConfigurationError(f"{min(given)} needs a rediss:// URL: without it nothing is encrypted")
    options: dict[str, Any] = {name: value or None for name, value in given.items()}
    if "tls_verify" in given:
        options["tls_verify"] = _yes_or_no("tls_verify", given["tls_verify"])
    return options


def _database(text: str, mode: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise ConfigurationError(f"database {text!r} must be a number, as in redis://host/0")
    if mode == "cluster" and int(text):
        raise ConfigurationError("a cluster has only database 0; use ?namespace= to keep harbors apart")
    return int(text)


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise ConfigurationError(
            f"namespace {text!r} is not usable: letters, digits, '.', '_' and '-', at most 64"
        )
    return text


def _durability(text: str) -> str:
    if text.upper() not in _CLASSES:
        raise ConfigurationError(f"durability={text!r} must be one of {', '.join(_CLASSES)}")
    return text.upper()


def _yes_or_no(name: str, text: str) -> bool:
    if text not in ("1", "0", "true", "false", "yes", "no"):
        raise ConfigurationError(f"{name}={text!r} must be true or false")
    return text in ("1", "true", "yes")


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 3600:
        raise ConfigurationError(f"{name}={text!r} must be seconds, from 0.001 to 3600")
    return seconds


def _missing_master() -> str:
    raise ConfigurationError(
        "a sentinel URL names the primary: redis+sentinel://host1,host2/NAME or ?master=NAME"
    )

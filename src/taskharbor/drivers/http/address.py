"""The URL of a server: host, path, token and options."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from taskharbor.errors import ConfigurationError

TOKEN_VARIABLE = "TASKHARBOR_TOKEN"
_OPTIONS = ("timeout", "connections", "ca")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]+")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `token` is never shown: not by repr, not in messages."""

    host: str
    port: int
    is_tls: bool
    path: str = ""
    token: str | None = None
    timeout_seconds: float = 30.0
    connections: int = 16
    ca: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    @property
    def authority(self) -> str:
        """The host as requests name it; the port only if it is not the default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The address without its token, for messages and logs."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"

    @property
    def exposes_token(self) -> bool:
        """True if the token would cross a network unencrypted."""
        return self.token is not None and not self.is_tls and not _is_loopback(self.host)

    def tls(self) -> ssl.SSLContext | None:
        """Certificates are always verified, with those of the system or of `ca`."""
        if not self.is_tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"ca={self.ca} holds no certificates: {error}") from None


def address_of(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """http://host, https://host:port/path; options timeout, connections, ca.

    The token is the user information of the URL, else TASKHARBOR_TOKEN, or the content of the file that
    TASKHARBOR_TOKEN_FILE names: a driver is often made from a URL alone, so it looks there itself.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError("the port of the server's URL is no number from 1 to 65535") from None
    if not host:
        raise ConfigurationError("the URL names no server; write http://host:port or https://host")
    is_tls = parts.scheme == "https"
    options = _options(parts.query)
    return Address(
        host=host,
        port=port or (443 if is_tls else 80),
        is_tls=is_tls,
        path=_path(parts.path),
        token=_token(parts, environ),
        timeout_seconds=_number(options, "timeout", 30.0, most=3600),
        connections=int(_number(options, "connections", 16, most=1000)),
        ca=options.get("ca"),
    )


def _path(path: str) -> str:
    """The path where the server is mounted; the address of its API is accepted, too."""
    path = path.rstrip("/").removesuffix("/api")
    if not _HEADER_VALUE.fullmatch(path or "/"):
        raise ConfigurationError("the path of the server's URL has characters that need to be %-encoded")
    return path


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if "namespace" in options:
        raise ConfigurationError(
            "a server serves one harbor: give namespace= to the store's URL where the server is started"
        )
    for name in options:
        if name not in _OPTIONS:
            raise ConfigurationError(
                f"{name}= is not known in the URL of a server; known: {', '.join(_OPTIONS)}"
            )
    return options


def _number(options: Mapping[str, str], name: str, default: float, *, most: float) -> float:
    text = options.get(name, str(default))
    try:
        number = float(text.removesuffix("s"))
    except ValueError:
        number = 0.0
    if not 0 < number <= most or (name == "connections" and number != int(number)):
        raise ConfigurationError(f"{name}={text!r} must be a number above 0 and up to {most:g}")
    return number


def _token(parts: SplitResult, environ: Mapping[str, str]) -> str | None:
    token = unquote(parts.password or parts.username or "") or environ.get(TOKEN_VARIABLE)
    if not token and (path := environ.get(f"{TOKEN_VARIABLE}_FILE")):
        try:
            token = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{TOKEN_VARIABLE}_FILE={path} cannot be read: {error}") from None
    if token and not _HEADER_VALUE.fullmatch(token):
        raise ConfigurationError("the token has characters that no token has; was it copied as a whole?")
    return token or None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

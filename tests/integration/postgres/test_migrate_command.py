"""taskharbor migrate on a database that has no schema of ours yet."""

import json
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from taskharbor.testing.servers import postgres_url, run_name

SCHEMA = f"th_migrate_{run_name()}"


def taskharbor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taskharbor", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def url() -> Iterator[str]:
    base = postgres_url()
    yield f"{base}{'&' if '?' in base else '?'}schema={SCHEMA}"
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"drop schema if exists {SCHEMA} cascade".encode())


def test_an_empty_database_is_migrated_by_the_command_that_the_error_names(url: str) -> None:
    refused = taskharbor("queues", "list", "--url", url)
    assert refused.returncode != 0
    assert "taskharbor migrate up" in refused.stderr

    pending = taskharbor("migrate", "status", "--url", url, "--json")
    assert pending.returncode == 1
    names = json.loads(pending.stdout)["pending"]
    assert names

    applied = taskharbor("migrate", "up", "--url", url, "--json")
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout)["applied"] == names
    assert taskharbor("migrate", "status", "--url", url).returncode == 0
    assert taskharbor("queues", "list", "--url", url).returncode == 0


def test_the_scripts_carry_the_name_of_the_schema(url: str) -> None:
    printed = taskharbor("migrate", "sql", "--url", url)

    assert SCHEMA in printed.stdout
    assert "{schema}" not in printed.stdout

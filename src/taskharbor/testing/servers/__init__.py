"""Throw-away servers out of wheels: a Postgres or a Valkey that needs nothing installed and leaves nothing.

    with PostgresServer() as server:
        connect(server.url)

A server listens on loopback only, keeps its data in a temporary folder of its own, and dies with
the process that started it, however that ends. Postgres refuses to run as root: then it runs under
an account that already exists, and nothing but that one folder changes hands.

`TASKHARBOR_TEST_POSTGRES_URL` and `TASKHARBOR_TEST_REDIS_URL` name servers to use instead; see
`postgres_url()` and `redis_url()`. What tests make there has the name of their run, and goes with it.
"""

from taskharbor.testing.servers.postgres import (
    PostgresServer,
    check_tallies,
    fresh_postgres_url,
    postgres_binaries,
    postgres_url,
)
from taskharbor.testing.servers.process import free_port, run_name
from taskharbor.testing.servers.valkey import (
    ValkeyCluster,
    ValkeyServer,
    cluster_url,
    fresh_cluster_url,
    fresh_redis_url,
    redis_url,
)

__all__ = [
    "PostgresServer",
    "ValkeyCluster",
    "ValkeyServer",
    "check_tallies",
    "cluster_url",
    "free_port",
    "fresh_cluster_url",
    "fresh_postgres_url",
    "fresh_redis_url",
    "postgres_binaries",
    "postgres_url",
    "redis_url",
    "run_name",
]

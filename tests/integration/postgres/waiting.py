"""Who waits for whom at the server, which tests beside this one use, too."""

import asyncpg

WAITS_FOR = "select exists (select from pg_locks where not granted and $1 = any (pg_blocking_pids(pid)))"


async def someone_waits_for(holder: asyncpg.Connection, watcher: asyncpg.Connection) -> bool:
    """Whether a session waits for a lock that this one holds."""
    return bool(await watcher.fetchval(WAITS_FOR, holder.get_server_pid()))

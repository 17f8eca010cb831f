"""A connection that knows the arrays of our statements, and need not ask the server about them.

asyncpg knows the plain types of Postgres and looks the arrays of them up, per connection and per
statement that names a new one: three questions with two round trips each. On a line with half a second
of latency a new connection took longer to send its first heartbeat than the lease of its jobs lasted.
The numbers of these types are the same on every server, for ever.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import asyncpg

_ELEMENTS = {
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1009: (25, "text"),
    1016: (20, "int8"),
    1022: (701, "float8"),
    1185: (1184, "timestamptz"),
    2951: (2950, "uuid"),
}
"""Number of an array type → number and name of the type of its elements."""


class _Lookup(NamedTuple):
    """In place of the statement of a look-up that was not needed: it has replaced no other."""

    name: str = "known"


class Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """Like any other; types that are not in the list are looked up as before."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: Any, timeout: float | None) -> Any:
        if any(oid not in _ELEMENTS for oid in typeoids):
            return await super()._introspect_types(typeoids, timeout)
        return [_array(oid) for oid in typeoids], _Lookup()


def _array(oid: int) -> dict[str, Any]:
    """What the server would answer about this type."""
    element, name = _ELEMENTS[oid]
    return {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": b",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
        "depth": 0,
        "basetype_name": None,
        "elemtype_name": name,
        "range_subtype_name": None,
    }

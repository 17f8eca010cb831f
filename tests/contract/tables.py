"""Which rows of the kit's tables belong to `make test` on a store, and which to `make test-more`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest


def later_rows_are_more(items: Iterable[pytest.Item], store_of: Callable[[pytest.Function], str]) -> None:
    """Leave one row of each table in `make test`; `store_of` names the store, or is empty for other tests.

    For stores that share their rules with one on which every row runs in `make test`.
    """
    seen = set()
    more = pytest.mark.more("the other rows of a table: the same rules run on another store in `make test`")
    for item in items:
        if isinstance(item, pytest.Function) and (store := store_of(item)):
            table = store, item.path, item.originalname
            if table in seen:
                item.add_marker(more)
            seen.add(table)

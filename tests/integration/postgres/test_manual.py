"""The statements on the page about Postgres run on a real server, and the one about fences on any."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def test_selects_on_the_page_run(store_url: str, database_url: str) -> None:
    schema = store_url.rpartition("schema=")[2]
    selects = [text for text in blocks("reference/postgres.md") if text.startswith("select")]

    with psycopg.connect(database_url) as connection:
        for text in selects:  # a trigger has `new`, a statement has not
            connection.execute(text.replace("taskharbor.", f"{schema}.").replace("new.id", "7").encode())
        rows = connection.execute(f"select type from {schema}.jobs order by seq".encode()).fetchall()
        connection.rollback()

    assert rows == [("mail.welcome",), ("mail.digest",)]


def test_the_guarded_write_refuses_a_smaller_fence() -> None:
    [update] = blocks("concepts/leases.md")

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("create table report (id, body, fence)")
        connection.execute("insert into report values (1, '', 5)")
        late = connection.execute(update, {"id": 1, "body": "late", "fence": 4}).rowcount
        newer = connection.execute(update, {"id": 1, "body": "newer", "fence": 6}).rowcount

    assert (late, newer) == (0, 1)

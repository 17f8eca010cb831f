"""How SQLite finds what the hot statements ask for: by keys, whatever else the store holds."""

import re
import sqlite3

import pytest

from taskharbor.drivers.sqlite.schema import MIGRATIONS
from taskharbor.drivers.sqlite.step import statements_for

SQL = statements_for("th_")
# Each runs once per call, claim or batch, beside a million jobs.
HOT = [
    "count_due", "enqueue_find_idempotency", "enqueue_keys", "enqueue_keys_taken", "enqueue_known",
    "edge_add", "edge_dependents", "edge_drop", "edge_drop_dependents", "edge_drop_park", "edge_parked_for",
    "enqueue_remember", "enqueue_waiting", "extend_find", "extend_move", "family_bind_waiting",
    "family_children", "family_completed", "family_due", "family_get", "family_has_children", "family_late",
    "family_open_children", "family_open_events", "family_parents", "find_children", "find_due", "get",
    "get_by_seq", "kept_add", "kept_history", "kept_leave", "kept_roots", "kept_state", "key_find",
    "note_get", "promote_count", "promote_last", "promote_leave", "promote_ready", "prune_batches",
    "prune_over", "reclaim_claims", "reclaim_jobs", "reserve_copies", "reserve_leave", "reserve_look",
    "reserve_more", "reserve_queues", "reserve_queues_of", "reserve_state", "reserve_types",
    "reserve_types_of", "settle_claim",
    "settle_claims_of", "settle_completed", "settle_completed_range", "settle_done", "settle_flags",
    "settle_forgotten", "settle_idempotency", "settle_keys", "settle_next", "settle_pass_on",
    "settle_results",
]  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    connection = sqlite3.connect(":memory:")
    for migration in MIGRATIONS:
        connection.executescript(migration.text)

    def explain(text):
        names = re.findall(r":([a-z_0-9]+)", text)
        values = [None] * text.count("?") if "?" in text else dict.fromkeys(names)
        return [row[3] for row in connection.execute(f"explain query plan {text}", values)]

    yield explain
    connection.close()


@pytest.mark.parametrize("name", HOT)
def test_no_hot_statement_walks_a_table(plan, name):
    steps = plan(SQL[name])

    # One row is all that th_meta has; the others are lists that the statement brings along.
    scans = [step for step in steps if step.startswith("SCAN") and "th_" in step and "th_meta" not in step]
    assert scans == []


@pytest.mark.parametrize("types", [1, 2, 100])
def test_a_pick_reads_each_line_in_its_order(plan, types):
    steps = plan(SQL.pick(types))

    lines = [step for step in steps if "th_waiting" in step]
    assert lines == ["SEARCH th_waiting USING PRIMARY KEY (queue=? AND lane=? AND type=?)"] * types
    assert not any("TEMP B-TREE" in step for step in steps), "a sort reads the whole line first"


def test_the_look_for_due_jobs_stays_on_the_key(plan):
    """Without the type and the rank it reads every scheduled job of the queue."""
    steps = plan(SQL["reserve_look"])

    assert "SEARCH th_waiting USING PRIMARY KEY (queue=? AND lane=? AND type=? AND rank=? AND at<?)" in steps


def test_what_was_picked_leaves_by_its_range(plan):
    steps = plan(SQL["reserve_leave"])

    assert (
        "SEARCH th_waiting USING PRIMARY KEY (queue=? AND lane=? AND type=? AND (rank,at,seq)<(?,?,?))"
        in steps
    )

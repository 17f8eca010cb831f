"""How `taskharbor top` looks: as much as fits the terminal, most important first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from taskharbor.cli.columns import NARROW_STATES, ago, counted, settings_of, span_text
from taskharbor.cli.tables import Column, fitted_table, plain_table, rich_table, wrapped
from taskharbor.cli.terminal import one_line
from taskharbor.client.needs import MOST

Item = Mapping[str, Any]

_LEAST = 12
WIDE = 110
"""From so many columns on there is room for everything."""


def lines_of(shot: Mapping[str, Any], width: int | None = None) -> list[str]:
    """The snapshot as plain lines: everything, fitted to a width if there is one."""
    now = datetime.fromisoformat(shot["at"])
    parts: list[str] = [*_headlines(shot, width), *_verdict(shot, width), ""]
    for title, columns, items in _tables(shot, now, is_wide=True):
        parts += [title, *(_table_lines(columns, items, width) if items else [_nothing(title)]), ""]
    return parts[:-1]


def _table_lines(columns: Sequence[Column], items: Sequence[Item], width: int | None) -> Iterable[str]:
    if width is None:
        return plain_table(columns, items)
    return ("".join(text for text, _ in line) for line in fitted_table(columns, items, width))


def _verdict(shot: Mapping[str, Any], width: int | None) -> list[str]:
    """What needs a person, in the words of the dashboard."""
    lines = [shot["verdict"]["text"]]
    lines += [one_line(f"- {need['text']}: {need['detail']}") for need in shot["needs"][:MOST]]
    if len(shot["needs"]) > MOST:
        lines.append(f"- {len(shot['needs']) - MOST} more")
    return lines if width is None else [part for line in lines for part in wrapped(line, width)]


def _headlines(shot: Mapping[str, Any], width: int | None) -> list[str]:
    return [headline(shot)] if width is None else wrapped(headline(shot), width)


def screen(shot: Mapping[str, Any], width: int, height: int, trouble: str | None = None) -> Any:
    """The snapshot for a terminal of this size; `trouble` is why it is not of this moment."""
    from rich.console import Group
    from rich.text import Text

    now = datetime.fromisoformat(shot["at"])
    rows: list[Any] = [Text(line, style="bold") for line in _headlines(shot, width)]
    if trouble is not None:
        text = f"no answer since {shot['at'][11:19]} UTC: {one_line(trouble)}"
        rows.append(Text(text, style="bold red", no_wrap=True, overflow="ellipsis"))
    tables = _tables(shot, now, is_wide=width >= WIDE)
    style = {"bad": "red", "warn": "yellow"}.get(shot["verdict"]["level"], "green")
    spare = max(height - len(rows) - 4 * len(tables) - 1, 0)  # each table keeps a row
    rows += [Text(line, style=style) for line in _verdict(shot, width)[:spare]]
    room = _room([len(items) for _, _, items in tables], height - len(rows) - 3 * len(tables) - 1)
    for (title, columns, items), fits in zip(tables, room, strict=True):
        rows.append(Text(""))
        rows.append(_title(title, len(items), fits))
        if items:
            rows.append(rich_table(_fitted(columns, items[:fits], width), items[:fits]))
        else:
            rows.append(Text(_nothing(title), style="dim"))
    return Group(*rows)


def headline(shot: Mapping[str, Any]) -> str:
    rate = shot["throughput"]
    queues = [queue for queue in shot["queues"] if queue["name"] != "*"]
    waiting = sum(queue["ready"] + queue["scheduled"] + queue["blocked"] for queue in queues)
    words = [
        f"{shot['at'][11:19]} UTC",
        f"{waiting} waiting",
        f"{sum(queue['running'] for queue in queues)} running",
        f"{sum(queue['failed'] for queue in queues)} failed",
    ]
    if rate is not None:
        words.append(f"{rate['arrived_per_s']:.1f} in/s, {rate['ended_per_s']:.1f} done/s")
    slots = sum(worker["concurrency"] for worker in shot["workers"])
    words.append(f"{counted(len(shot['workers']), 'worker')}, {counted(slots, 'slot')}")
    words.append(one_line(f"{shot['store']['driver']} {shot['store']['location']}"))
    return "  ".join(words)


def _tables(
    shot: Mapping[str, Any], now: datetime, *, is_wide: bool
) -> list[tuple[str, Sequence[Column], Sequence[Item]]]:
    busy_first = sorted(
        shot["queues"], key=lambda queue: (-(queue["ready"] + queue["running"]), queue["name"])
    )
    return [
        ("QUEUES", _queue_columns(is_wide), busy_first),
        ("WORKERS", _worker_columns(now, is_wide), shot["workers"]),
        ("FAILURES", _failing_columns(now, is_wide), shot["failing"]),
    ]


def _queue_columns(is_wide: bool) -> list[Column]:
    states = (
        ("ready", "running", "scheduled", "blocked", "failed") if is_wide else ("ready", "running", "failed")
    )
    columns = [Column("QUEUE", lambda queue: queue["name"])]
    columns += [_number(state) for state in states]
    columns += [
        Column("IN/S", lambda queue: _rate(queue, "arrived_per_s"), is_number=True),
        Column("DONE/S", lambda queue: _rate(queue, "ended_per_s"), is_number=True),
        Column("OLDEST", lambda queue: span_text(queue["oldest_s"]), is_number=True),
        Column("SETTINGS", lambda queue: ", ".join(settings_of(queue)), is_below=True),
    ]
    return columns


def _worker_columns(now: datetime, is_wide: bool) -> list[Column]:
    columns = [
        Column("WORKER", lambda worker: worker["id"]),
        Column("KIND", lambda worker: worker["kind"]),
        Column("BUSY", _busy),
        Column("USUAL", lambda worker: _milliseconds(worker["latency_s"]), is_number=True),
        Column("SEEN", lambda worker: ago(worker["seen_at"], now)),
    ]
    if is_wide:
        columns += [
            Column("UP", lambda worker: ago(worker["started_at"], now)),
            Column("QUEUES", lambda worker: ",".join(worker["queues"]), is_below=True),
        ]
    return columns


def _failing_columns(now: datetime, is_wide: bool) -> list[Column]:
    columns = [
        Column("TASK", lambda group: group["task"]),
        Column("DEAD", lambda group: group["dead"], is_number=True),
        Column("RETRYING", lambda group: group["retrying"], is_number=True),
        Column("LAST", lambda group: ago(group["last_at"], now)),
    ]
    if is_wide:
        columns += [
            Column("QUEUE", lambda group: group["queue"]),
            Column("FAILURE", lambda group: group["failure_kind"]),
        ]
    return [*columns, Column("ERROR", lambda group: group["error"], is_below=True)]


def _fitted(columns: Sequence[Column], items: Sequence[Item], width: int) -> list[Column]:
    """The columns with names and words cut to what the numbers leave over: the last, then the first."""
    first, *others, last = columns
    taken = sum(max(len(c.title), *(len(c.text(item)) for item in items)) + 2 for c in others)
    named = max(len(first.title), *(len(first.text(item)) for item in items))
    named = min(named, max(width - taken - _LEAST - 2, _LEAST))
    rest = max(width - taken - named - 2, _LEAST)
    return [_cut_to(first, named), *others, _cut_to(last, rest)]


def _cut_to(column: Column, length: int) -> Column:
    return Column(column.title, lambda item: _cut(column.text(item), length), is_number=column.is_number)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _room(wanted: Sequence[int], height: int) -> list[int]:
    """How many rows each table gets: an equal share, and what others leave over; at least one."""
    given = [0] * len(wanted)
    left = max(height, len(wanted))
    while left > 0 and any(have < want for have, want in zip(given, wanted, strict=True)):
        for at, want in enumerate(wanted):
            if given[at] < want and left > 0:
                given[at] += 1
                left -= 1
    return given


def _title(title: str, count: int, fits: int) -> Any:
    from rich.text import Text

    more = f"  {count - fits} more not shown" if count > fits else ""
    return Text.assemble((title, "bold cyan"), (more, "dim"))


def _nothing(title: str) -> str:
    return {
        "QUEUES": "no jobs yet",
        "WORKERS": "no worker is running: start one with `taskharbor worker APP`",
        "FAILURES": "nothing",
    }[title]


def _number(name: str) -> Column:
    return Column(name.upper(), lambda queue: queue[name], is_number=True, narrow=NARROW_STATES[name])


def _rate(queue: Item, name: str) -> str | None:
    rate = queue["throughput"]
    return None if rate is None else f"{rate[name]:.1f}"


def _busy(worker: Item) -> str:
    slots, busy = worker["concurrency"], len(worker["running"])
    filled = round(8 * min(busy / slots, 1.0)) if slots else 0
    return f"{'■' * filled}{'·' * (8 - filled)} {busy}/{slots}"


def _milliseconds(seconds: float | None) -> str | None:
    if seconds is None or seconds >= 10:
        return span_text(seconds)
    return f"{seconds:.1f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"

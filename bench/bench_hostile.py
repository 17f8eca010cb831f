"""Does a server answer while hostile callers do their worst? A real `taskharbor server` on SQLite.

    python bench/bench_hostile.py [--connections 10000] [--dry]

Connections that ask and never read, a mebibyte of hostile JSON, trailers without end and repeated ids, all
at once. Meanwhile another process asks for /livez fifty times a second. Aims: each answer within 0.5 s, at
most 256 MiB of memory, and no more files open than the connections the server may hold, and a few. The
attacks are those of tests/integration/http/test_hostile_callers.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from results import table, write_section

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.integration.http.hostile import MOST_FILES, MOST_MEMORY, attacked, enough_files, started

SLOWEST_SECONDS = 0.5
HEAD = ["what", "seen", "bar", "held"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=10_000, help="attempts that never read")
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md as it is")
    args = parser.parse_args()
    rows = measured(args.connections)
    text = table(HEAD, rows)
    print(text)
    if not args.dry:
        write_section("A server under hostile callers", text)
    return 0 if all(row[-1] == "yes" for row in rows) else 1


def measured(connections: int) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder, enough_files(), started(Path(folder)) as server:
        prober = attacked(server, connections)
        peak, made, files = server.peak, server.made, server.most_files
    asked = prober.answered + prober.refused
    return [
        row("connections made that never read", f"{made:,}", f"{connections:,}", made == connections),
        row("`/livez` answered", f"{prober.answered:,}", f"all of {asked:,}", prober.refused == 0 < asked),
        row(
            "`/livez` at worst",
            f"{prober.slowest:.3f} s",
            f"≤ {SLOWEST_SECONDS:g} s",
            prober.slowest <= SLOWEST_SECONDS,
        ),
        row("memory at most", f"{peak >> 20} MiB", f"≤ {MOST_MEMORY >> 20} MiB", peak <= MOST_MEMORY),
        row("files open at most", f"{files:,}", f"≤ {MOST_FILES:,}", files <= MOST_FILES),
    ]


def row(what: str, seen: str, bar: str, is_held: bool) -> list[str]:
    return [what, seen, bar, "yes" if is_held else "NO"]


if __name__ == "__main__":
    sys.exit(main())

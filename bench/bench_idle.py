"""What does a worker cost that has nothing to do? CPU time and memory of a real process, scheduler beside it.

    python bench/bench_idle.py [--seconds 60] [--url sqlite:////tmp/jobs.db]

CPU time, not the clock on the wall: a busy machine shows the same. Aims: at most 0.5 % of a core and
60 MiB of resident memory on SQLite.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import table, write_section

CPU_PERCENT = 0.5
MEMORY_MIB = 60.0
APP = """
from taskharbor import Harbor
harbor = Harbor({url!r})

@harbor.task
async def nothing() -> None: ...
"""
FLAGS = {"scheduler beside it": [], "alone (--no-scheduler)": ["--no-scheduler"]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it idles")
    parser.add_argument("--url", help="another store than a SQLite file of its own")
    args = parser.parse_args()
    rows = [measured(name, flags, args.seconds, args.url) for name, flags in FLAGS.items()]
    head = ["worker", "CPU, % of a core", f"≤ {CPU_PERCENT}", "resident, MiB", f"≤ {MEMORY_MIB:g}"]
    body = f"`taskharbor worker` on a store without jobs, {args.seconds:g} s after it had settled.\n\n"
    write_section("An idle worker", body + table(head, rows))
    return 0 if all(row[2] == row[4] == "yes" for row in rows) else 1


def measured(name: str, flags: list[str], seconds: float, url: str | None) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "idle_app.py").write_text(APP.format(url=url or f"sqlite:///{folder}/jobs.db"))
        command = [sys.executable, "-m", "taskharbor", "worker", "idle_app:harbor", *flags]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            percent, resident = idle(process.pid, Path(folder, "log"), seconds)
        finally:
            process.terminate()
            process.wait()
    row = [name, f"{percent:.2f}", _verdict(percent, CPU_PERCENT)]
    row += [f"{resident:.1f}", _verdict(resident, MEMORY_MIB)]
    print("  ".join(row), flush=True)
    return row


def idle(pid: int, log: Path, seconds: float) -> tuple[float, float]:
    """Percent of a core while it idled, and resident MiB afterwards."""
    deadline = time.monotonic() + 60
    while "serves" not in log.read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not start:\n{log.read_text()}")
        time.sleep(0.05)
    time.sleep(5.0)  # its first claims, reports and the election of the scheduler are over
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    used = cpu_seconds(pid) - before
    return 100 * used / (time.monotonic() - began), resident_mib(pid)


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, to the nanosecond where the kernel counts so exactly."""
    schedstat = [int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    if any(schedstat):
        return sum(schedstat) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [resident] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(resident) / 1024


def _verdict(figure: float, most: float) -> str:
    return "yes" if figure <= most else "NO"


if __name__ == "__main__":
    sys.exit(main())

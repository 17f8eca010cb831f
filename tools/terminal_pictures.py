"""Pictures of the command line for the docs: what `top` and the demo really print, as SVG.

    python tools/terminal_pictures.py     writes docs/images/top.svg and demo.svg

Their text is that of a real run, so it differs from run to run; the test compares what does not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 110
_COLOURED = {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}


STORE = ("--url", "sqlite:///demo.db")
HANDLED = ("--handle", "convert=sleep", "--handle", "send=fail")
JOBS = (("mail", "convert"), ("mail", "convert"), ("mail", "send"), ("mail", "send"), ("video", "convert"))


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = _run(folder, "demo", "--once")
        for queue, task in JOBS:
            _run(folder, "enqueue", task, "seconds=300", "-q", queue, "--max-attempts", "1", *STORE)
        with _started(folder, "worker", *STORE, *HANDLED, "-q", "mail,video") as worker:
            top = _when_busy(folder)
            worker.kill()
    write("demo", "taskharbor demo --once", demo)
    write("top", "taskharbor top -A app:harbor", top.replace(f"{folder}/", ""))
    return 0


def _when_busy(folder: Path) -> str:
    """What `top` shows once jobs run and one has failed."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        shown = _run(folder, "top", "--once", *STORE)
        if " 0 workers" not in shown and " 3 running" in shown and " 2 failed" in shown:
            return shown
    raise SystemExit(f"the worker does not run the jobs:\n{shown}")


def write(name: str, command: str, output: str) -> None:
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title=command, unique_id=name)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # it would be loaded from elsewhere
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    (IMAGES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")


def _run(folder: Path, *words: str) -> str:
    return subprocess.run(
        _command(words),
        cwd=folder,
        env=_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


def _started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(_command(words), cwd=folder, env=_env(), stderr=subprocess.DEVNULL, text=True)


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "taskharbor", *words]


def _env() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith("TASKHARBOR_")
    } | _COLOURED


if __name__ == "__main__":
    sys.exit(main())

"""Checks the dashboard's modules with TypeScript: unknown names, imports that no module exports, wrong calls.

    python tools/check_scripts.py

It needs Node, and npx fetches the pinned compiler once. Where that does not work within some seconds it says
why it was skipped, and succeeds: only what the compiler finds fails. Types that only annotations could give
are not asked for: the modules have few, and every value from the API is `any`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

UI = Path(__file__).parents[1] / "src/taskharbor/web/ui"
COMPILER = "typescript@5.9.3"
OPTIONS = [
    *("--noEmit", "--allowJs", "--checkJs", "--strict", "false"),
    *("--target", "esnext", "--module", "esnext", "--moduleResolution", "bundler"),
    *("--lib", "esnext,dom,dom.iterable"),
]
_ERROR = re.compile(r"^[^ ].*error TS(\d+): ", re.MULTILINE)
_MEANT = re.compile(r"1\d{3}|2304|2305|2307|2552|2554|2555|2614|18004")
"""Syntax, unknown names, unknown exports and files, wrong numbers of arguments."""

LONGEST_S = 14.0
_QUIET = {**os.environ, "npm_config_fetch_retries": "0", "npm_config_update_notifier": "false"}
"""Without a network npm gives up at once."""


def main() -> int:
    output = _compiled()
    codes = [(found[1], line) for line in output.splitlines() if (found := _ERROR.match(line))]
    wrong = [line for code, line in codes if _MEANT.fullmatch(code) and not line.startswith("vendor/")]
    if wrong or codes or not output:
        print("\n".join(wrong) or "The modules fit together")
    else:
        print(f"skipped: {output.splitlines()[0]}")
    return 1 if wrong else 0


def _compiled() -> str:
    """What the compiler finds, empty if nothing; else a line that says why it did not run."""
    npx = shutil.which("npx")
    if npx is None:
        return "Node is not here: install nodejs and npm"
    command = [npx, "--yes", "--prefer-offline", "--package", COMPILER, "tsc"]
    command += [*OPTIONS, "app.js", "pages/index.js"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=UI, text=True, env=_QUIET, stdout=pipe, stderr=pipe, start_new_session=True
    ) as npm:
        try:
            found, errors = npm.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(npm.pid, signal.SIGKILL)  # npx starts others, which would hold the pipes
            return f"{COMPILER} did not answer within {LONGEST_S:g} s"
    if npm.returncode == 0:
        return ""
    return found if _ERROR.search(found) else f"{COMPILER} does not run: {_first_line(errors or found)}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it ended without a word")


if __name__ == "__main__":
    sys.exit(main())

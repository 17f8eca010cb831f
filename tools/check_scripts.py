"""Checks the dashboard's modules with TypeScript: unknown names, imports that no module exports, wrong calls.

    python tools/check_scripts.py [--where-possible]

It needs Node, and npx fetches the pinned compiler once. `make check` asks for it where that works: elsewhere
it says why it was skipped. Types that only annotations could give are not asked for: the modules have few,
and every value from the API is `any`.
"""

from __future__ import annotations

import os
import re
import shutil
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
_ERROR = re.compile(r"^[^ ].*error TS(\d+): ")
_MEANT = re.compile(r"1\d{3}|2304|2305|2307|2552|2554|2555|2614|18004")
"""Syntax, unknown names, unknown exports and files, wrong numbers of arguments."""

_LONGEST_S = 120
_QUIET = {**os.environ, "npm_config_fetch_retries": "0", "npm_config_update_notifier": "false"}
"""Without a network npm gives up at once."""


def main() -> int:
    npx = shutil.which("npx")
    if npx is None:
        return _not_checked("Node is not here: install nodejs and npm")
    command = [npx, "--yes", "--prefer-offline", "--package", COMPILER, "tsc"]
    command += [*OPTIONS, "app.js", "pages/index.js"]
    try:
        done = subprocess.run(
            command, cwd=UI, capture_output=True, text=True, check=False, timeout=_LONGEST_S, env=_QUIET
        )
    except subprocess.TimeoutExpired:
        return _not_checked(f"{COMPILER} did not answer within {_LONGEST_S} s")
    lines = done.stdout.splitlines()
    codes = [(found[1], line) for line in lines if (found := _ERROR.match(line))]
    if done.returncode and not codes:
        output = (done.stderr + done.stdout).strip()
        if output.startswith("npm "):
            return _not_checked(f"{COMPILER} cannot be fetched: {output.splitlines()[0]}")
        print(output, file=sys.stderr)
        return 2
    wrong = [line for code, line in codes if _MEANT.fullmatch(code) and not line.startswith("vendor/")]
    print("\n".join(wrong) or "The modules fit together")
    return 1 if wrong else 0


def _not_checked(why: str) -> int:
    is_asked = "--where-possible" not in sys.argv[1:]
    print(why if is_asked else f"The dashboard's modules were not checked: {why}", file=sys.stderr)
    return 2 if is_asked else 0


if __name__ == "__main__":
    sys.exit(main())

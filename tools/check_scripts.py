"""Checks the dashboard's modules with TypeScript: unknown names, imports that no module exports, wrong calls.

    python tools/check_scripts.py

It needs Node and fetches the pinned compiler with npx, so it is no part of the tests. Types that only
annotations could give are not asked for: the modules have few, and every value from the API is `any`.
"""

from __future__ import annotations

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


def main() -> int:
    npx = shutil.which("npx")
    if npx is None:
        print("Node is not here: install nodejs and npm", file=sys.stderr)
        return 2
    command = [npx, "--yes", "--package", COMPILER, "tsc", *OPTIONS, "app.js", "pages/index.js"]
    done = subprocess.run(command, cwd=UI, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    codes = [(found[1], line) for line in lines if (found := _ERROR.match(line))]
    if done.returncode and not codes:
        print(done.stdout + done.stderr, file=sys.stderr)
        return 2
    wrong = [line for code, line in codes if _MEANT.fullmatch(code) and not line.startswith("vendor/")]
    print("\n".join(wrong) or "The modules fit together")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

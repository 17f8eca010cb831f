"""Ask every address outside of the repository that the docs link to. For the nightly run: it needs a network.

python tools/links.py        prints the links that do not answer, and exits with 1 if there are any
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
# Addresses of examples, and of this project, whose pages are published after the pages that name them.
_NOT_ASKED = re.compile(
    r"https?://(127\.0\.0\.1|localhost|example\.|jobs\.example|taskharbor\.github\.io|github\.com/taskharbor)"
)
_GONE = (404, 410)
"""Other errors say something about the asking machine, or about the moment."""


def main() -> int:
    places = links()
    with ThreadPoolExecutor(8) as threads:
        answers = dict(zip(places, threads.map(trouble, places), strict=True))
    for address, why in answers.items():
        if why:
            print(f"{address}: {why}; linked in {', '.join(sorted(places[address]))}")
    print(f"links: {len(places)} asked, {sum(1 for why in answers.values() if why)} gone")
    return 1 if any(answers.values()) else 0


def links() -> dict[str, set[str]]:
    """Every address outside, with the pages that link to it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for address in _LINK.findall(page.read_text("utf-8")):
            if not _NOT_ASKED.match(address):
                found[address.partition("#")[0]].add(page.relative_to(ROOT).as_posix())
    return dict(found)


def trouble(address: str) -> str | None:
    request = urllib.request.Request(address, headers={"User-Agent": "taskharbor-docs"})
    for _ in range(2):
        try:
            with urllib.request.urlopen(request, timeout=20):
                return None
        except urllib.error.HTTPError as error:
            return f"HTTP {error.code}" if error.code in _GONE else None
        except (OSError, ValueError) as error:
            why = str(error)
    return why


if __name__ == "__main__":
    sys.exit(main())

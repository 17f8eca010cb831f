"""Parts of pages that follow from other files: figures of the benchmarks, and what is supported.

    python -m tools.generated        writes them again; `make fix` does, too

docs/project/comparison.md and docs/home.md get their tables from bench/RESULTS.md, docs/reference/support.md
from the CI workflow, pyproject.toml and the versions that the drivers refuse, docs/README.md from the
navigation of the site. A test compares.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import yaml

from taskharbor.drivers.postgres.schema import OLDEST_SERVER
from taskharbor.drivers.redis.health import _OLDEST as OLDEST_REDIS
from taskharbor.drivers.sqlite.connection import OLDEST as OLDEST_SQLITE
from tools.docs import PROJECT

ROOT = Path(__file__).parents[1]
HOME = ROOT / "docs" / "home.md"
INDEX = ROOT / "docs" / "README.md"
COMPARISON = ROOT / "docs" / "project" / "comparison.md"
SUPPORT = ROOT / "docs" / "reference" / "support.md"
RESULTS = ROOT / "bench" / "RESULTS.md"
STORES = {
    "SQLite": "SQLite beside its peers",
    "Valkey": "Valkey beside its peers",
    "PostgreSQL": "Postgres beside its peers",
    "PostgreSQL, a million jobs waiting": "Postgres beside its peers, 1,000,000 jobs waiting",
}
COLUMNS = {
    "1 worker process": "1 proc",
    "2 worker processes": "2 proc",
    "enqueued one by one": "1-by-1",
    "pick-up, ms": "pick-up",
    "memory, MiB": "RSS",
}
"""What the comparison shows, with a part of the heading that the results have."""
_LEFT_OUT = re.compile(r"ceiling-|taskharbor-\w+-(?:full|async|delete)")


def main() -> int:
    for path, text in files().items():
        path.write_text(text, "utf-8")
    return 0


def files() -> dict[Path, str]:
    """Every page with a part that is written here, with its text."""
    return {
        HOME: _with_parts(HOME, {"kills": kills()}),
        INDEX: index(),
        COMPARISON: _with_parts(COMPARISON, {"figures": figures(), "kills": kills()}),
        SUPPORT: _with_parts(SUPPORT, {"versions": versions()}),
    }


def _with_parts(page: Path, parts: dict[str, str]) -> str:
    text = page.read_text("utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: written by tools/generated.py -->\n", f"<!-- end of {name} -->\n"
        head, rest = text.split(begin)
        text = head + begin + "\n" + part + "\n" + end + rest.split(end)[1]
    return text


# ------------------------------------------------------------------ figures of the benchmarks


def figures() -> str:
    results = RESULTS.read_text("utf-8")
    return "\n".join(_store(name, _section(results, title)) for name, title in STORES.items())


def _section(results: str, title: str) -> str:
    return re.split(rf"^## {re.escape(title)}$", results, flags=re.MULTILINE)[1].split("\n## ")[0]


def _store(name: str, section: str) -> str:
    """The table of one store: the fastest first, our other settings and the bare statements left out."""
    [run] = re.findall(r"^(\d{4}-\d\d-\d\d, .*), commit", section, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in _table(section)]
    head, peers = rows[0], [row for row in rows[2:] if not _LEFT_OUT.match(row[0])]
    columns = {title: at for title, part in COLUMNS.items() if (at := _column(head, part)) is not None}
    kept = [[_peer(row[0]), *(_figure(row[at]) for at in columns.values())] for row in peers]
    kept.sort(key=lambda row: -_number(row[2]))
    lines = [f"### {name}", "", f"{run}.", ""]
    lines += [f"| {' | '.join(['queue', *columns])} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in kept), ""])


def _column(head: list[str], part: str) -> int | None:
    return next((at for at, cell in enumerate(head) if part in cell), None)


def _table(section: str) -> list[str]:
    return [line for line in section.splitlines() if line.startswith("|")]


def _figure(cell: str) -> str:
    """Without the ratio to others, and of several percentiles the median."""
    return re.split(r" \(| / ", cell, maxsplit=1)[0]


def _number(rate: str) -> float:
    return float(rate.replace(",", "")) if rate[:1].isdigit() else 0.0


def _peer(name: str) -> str:
    return "**TaskHarbor**" if name.startswith("taskharbor") else name


def kills() -> str:
    """What the queues did with the job of a killed worker."""
    section = _section(RESULTS.read_text("utf-8"), "The job of a killed worker")
    [run] = re.findall(r"^(\d{4}-\d\d-\d\d), ", section, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in _table(section)[2:]]
    lines = ["| queue | the job runs again after |", "|---|---|"]
    lines += [f"| {_peer(name)} | {after} |" for name, after in rows]
    return "\n".join([*lines, "", f"{run}, on Valkey.", ""])


# ------------------------------------------------------------------ the list of pages


def index() -> str:
    """The navigation of the site, for readers of the repository."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    lines = [line for part in nav[1:] for title, pages in part.items() for line in _chapter(title, pages)]
    return "\n".join(["# Documentation", "", _FIRST, *lines, "", _LAST, ""])


_FIRST = "These pages are also a site: `make docs` builds it, and its search finds every word."
_LAST = (
    "The [examples](../examples) are short programs that run as they are, and whole applications: "
    "[a FastAPI service](../examples/fastapi_service) and [a Django shop](../examples/django_shop)."
)


def _chapter(title: str, pages: list[dict[str, object]]) -> list[str]:
    lines = ["", f"## {title}", ""]
    for page in pages:
        for name, target in page.items():
            if isinstance(target, list):
                inside = [entry for one in target for entry in one.items()]
                if linked := [
                    f"  - [{one}]({place})" for one, at in inside if (place := _repository_path(at))
                ]:
                    lines += [f"- {name}", *linked]
            elif place := _repository_path(target):
                lines.append(f"- [{name}]({place})")
    return lines


def _repository_path(page: object) -> str | None:
    """Where a page of the site lies, from docs/; None for those that are made from docstrings."""
    name = str(page)
    if place := {page: file for file, page in PROJECT.items()}.get(name):
        return f"../{place}"
    name = re.sub(r"(^|/)index\.md$", r"\1README.md", name)
    return name if (ROOT / "docs" / name).exists() else None


# ------------------------------------------------------------------ what is supported


def versions() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest_python = project["requires-python"].removeprefix(">=")
    tests, stores = _matrix("test"), _matrix("stores")
    pythons = [one["python"] for one in tests if "ubuntu" in one["os"] and not one.get("is_trial")]
    trials = ", ".join(one["python"] for one in tests if one.get("is_trial"))
    macos = ", ".join(one["python"] for one in tests if "macos" in one["os"])
    rows = [
        ("Python", ", ".join(pythons), *_from(oldest_python)),
        ("free-threaded Python", "–", f"{trials}: a trial that may fail", "–"),
        ("PostgreSQL", _images(stores, "postgres", "postgres:"), *_from(str(OLDEST_SERVER // 10000))),
        ("Redis", _images(stores, "redis", "redis:"), *_from(_dotted(OLDEST_REDIS))),
        ("Valkey", _images(stores, "redis", "valkey/valkey:"), "all", "–"),
        ("SQLite", "that of each Python", *_from(_dotted(OLDEST_SQLITE))),
        ("Linux", "all of it", "–", "–"),
        ("macOS", f"all of it, on Python {macos}", "–", "–"),
        ("Windows", "importing and enqueueing", "workers and the server in WSL 2", "workers and the server"),
    ]
    head = ["| what | tested in CI | expected to work | refused |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _from(oldest: str) -> tuple[str, str]:
    return f"{oldest} and newer", f"below {oldest}"


def _matrix(job: str) -> list[dict[str, str]]:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    found: list[dict[str, str]] = workflow["jobs"][job]["strategy"]["matrix"]["include"]
    return found


def _images(stores: list[dict[str, str]], key: str, name: str) -> str:
    found = [one[key].removeprefix(name) for one in stores if one[key].startswith(name)]
    return ", ".join(dict.fromkeys(found))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.exit(main())

"""ARCHITECTURE.md is literally true: the files it names exist, and a job passes through those it lists."""

import re
from pathlib import Path

import pytest

from taskharbor import __file__ as package
from taskharbor.testing.http_server import HttpServer
from taskharbor.testing.servers.postgres import fresh_postgres_url
from taskharbor.testing.servers.valkey import fresh_cluster_url, fresh_redis_url
from tools.job_way import way_of_a_job

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
MOST_FILES = {"memory": 30, "sqlite": 30, "postgres": 30, "redis": 30, "http": 31, "cluster": 39}


def listed() -> dict[str, set[str]]:
    """The Python files of a job's way, by the word that begins their lines."""
    block = PAGE.split("### Every file of it")[1].split("```")[1]
    groups: dict[str, set[str]] = {}
    name = ""
    for line in block.strip().splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
        groups.setdefault(name, set()).update(word for word in line.split() if word.endswith(".py"))
    return groups


def way_on(store: str) -> set[str]:
    groups = listed()
    return groups["common"] | groups[store] | groups["values"]


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"[\w/]+/[\w.]+\.(?:py|md|sql|lua|toml)\b", PAGE))
    folders = (ROOT, Path(package).parent)

    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []


def test_every_name_is_in_the_file_that_the_page_names_with_it() -> None:
    """As in "`decide` in `model/settlement.py`" and "`reclaim_one` (`drivers/lifecycle.py`)"."""
    pairs = re.findall(r"`(\w+)`(?:,| in|\s+\()\s*`([\w/]+\.py)`", PAGE)

    assert len(pairs) > 10
    assert [
        (name, file)
        for name, file in pairs
        if not re.search(rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}\b.*=", text_of(file), re.MULTILINE)
    ] == []


def text_of(file: str) -> str:
    return (Path(package).parent / file).read_text("utf-8")


def test_the_map_has_every_part_of_the_package() -> None:
    drawn = re.findall(r"^[├└]── ([\w.]+)", PAGE, re.MULTILINE)
    there = {path.name for path in Path(package).parent.iterdir() if not path.name.startswith(("_", "."))}

    assert set(drawn) == there - {"py.typed"}
    assert len(drawn) == len(set(drawn))


def test_every_store_has_its_list() -> None:
    assert set(MOST_FILES) == set(listed()) - {"common", "values"}


async def test_a_job_passes_through_the_listed_files_over_http(tmp_path: Path) -> None:
    with HttpServer(f"sqlite:///{tmp_path}/jobs.db") as server:
        assert await way_of_a_job(server.url) == way_on("http")


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres", "redis", "cluster"])
async def test_a_job_passes_through_the_listed_files(store: str, tmp_path: Path) -> None:
    urls = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/jobs.db",
        "postgres": fresh_postgres_url,
        "redis": fresh_redis_url,
        "cluster": fresh_cluster_url,
    }

    assert await way_of_a_job(urls[store]()) == way_on(store)


@pytest.mark.parametrize("store", MOST_FILES)
def test_the_way_of_a_job_is_short(store: str) -> None:
    assert len(way_on(store)) == MOST_FILES[store]


def test_every_file_that_a_comment_names_exists() -> None:
    """`model/retry.py`, `exchange.lua` and the like in docstrings and comments, by the end of their path."""
    files = [*(ROOT / "src").rglob("*.*"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    known = {f"/{file.relative_to(ROOT)}" for file in files}
    known |= {"/app/mail/smtp.py", "/tests/test_conformance.py"}  # examples: files of a user's own program
    dead = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in (ROOT / "src/taskharbor").rglob("*.py")
        for name in re.findall(r"(?<![\w/.{<-])(?:\w+/)+\w+\.(?:py|sql|lua)\b", module.read_text("utf-8"))
        if not any(path.endswith(f"/{name}") for path in known)
    ]

    assert not dead

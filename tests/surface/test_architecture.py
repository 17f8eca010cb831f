"""ARCHITECTURE.md is literally true: the files it names exist, and a job passes through those it lists."""

import re
from pathlib import Path

from taskharbor import __file__ as package
from tools.job_way import way_of_a_job

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")


def listed() -> dict[str, set[str]]:
    """The files of a job's way, by the word that begins their lines."""
    block = PAGE.split("### Every file of it")[1].split("```")[1]
    groups: dict[str, set[str]] = {}
    name = ""
    for line in block.strip().splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
        groups.setdefault(name, set()).update(word for word in line.split() if word != name)
    return groups


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"[\w/]+/[\w.]+\.(?:py|md|sql|lua|toml)\b", PAGE))
    folders = (ROOT, Path(package).parent)

    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []


async def test_a_job_on_the_memory_store_passes_through_the_listed_files() -> None:
    groups = listed()

    assert await way_of_a_job("memory://") == groups["steps"] | groups["memory"] | groups["helpers"]


async def test_a_job_on_sqlite_passes_through_every_listed_step(tmp_path: Path) -> None:
    groups = listed()
    steps = {name for name in groups["steps"] | groups["sqlite"] if name.endswith(".py")}

    assert steps - await way_of_a_job(f"sqlite:///{tmp_path}/jobs.db") == set()


def test_no_store_has_more_than_thirty_files_with_a_step() -> None:
    groups = listed()
    steps = groups.pop("steps")
    del groups["helpers"]

    assert {store: len(steps | files) for store, files in groups.items() if len(steps | files) > 30} == {}

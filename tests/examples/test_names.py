"""Routes, variables, metrics and attributes that pages name exist."""

import re
from pathlib import Path

import pytest

from taskharbor import Harbor, Job, JobContext, JobHandle
from taskharbor.cli.main import COMMANDS
from taskharbor.integrations.flask import FlaskHarbor
from taskharbor.settings import SETTINGS
from taskharbor.web.app import OPERATIONS
from tests.examples.pages import PAGES, ROOT, prose, text_of
from tests.examples.pages import _built as built

SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
PUBLIC = set(
    re.findall(r"^(?:def )?taskharbor\.(\w+\.\w+)", text_of("tests/surface/public_api.txt"), re.MULTILINE)
)
ROUTE = re.compile(
    r"`(GET|POST|PUT|PATCH|DELETE)(?: or (DELETE))? [^\s`?]*?(/api/[^\s`?]*|/[a-z]+)(?:\?[^`]*)?`"
)
NO_OPERATIONS = {"/metrics": "there with prometheus-client", "/api/driver/{verb}": "one per verb"}


def pages_with(pattern: str) -> dict[str, set[str]]:
    """What the pattern finds, with the pages that have it."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        for word in re.findall(pattern, text_of(page)):
            found.setdefault(word, set()).add(page)
    return found


def test_every_route_that_a_page_names_exists() -> None:
    routes = [(one.method, re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(one.path))) for one in OPERATIONS]

    wrong, seen = [], 0
    for page in PAGES:
        for first, second, path in ROUTE.findall(text_of(page)):
            for method in filter(None, (first, second)):
                seen += 1
                if path not in NO_OPERATIONS and not any(
                    method == known and re.fullmatch(pattern, path) for known, pattern in routes
                ):
                    wrong.append((page, method, path))

    assert seen > 60
    assert wrong == []


def variables() -> set[str]:
    """Those of settings, and those of flags: TASKHARBOR_, the command, the flag."""
    found = {name for setting in SETTINGS.values() for name in (setting.variable, f"{setting.variable}_FILE")}
    for name in COMMANDS:
        command = built(name)
        for leaf in [command, *getattr(command, "commands", {}).values()]:
            words = name if leaf is command else f"{name}_{leaf.name}"
            found |= {f"TASKHARBOR_{words}_{one.name}".upper().replace("-", "_") for one in leaf.params}
    return found


def test_every_variable_that_a_page_names_is_read() -> None:
    known = variables()

    named = pages_with(r"\bTASKHARBOR_[A-Z_]*[A-Z]\b")

    assert len(named) > 60
    assert {
        name: pages for name, pages in named.items() if name not in known and f'"{name}"' not in SOURCE
    } == {}


def test_every_metric_and_field_that_a_page_names_is_in_the_code() -> None:
    named = pages_with(r"`(taskharbor_[a-z_]*[a-z])`")

    assert len(named) > 40
    assert {name: pages for name, pages in named.items() if not re.search(rf"\b{name}\b", SOURCE)} == {}


@pytest.mark.parametrize(
    ("variable", "kinds"),
    [
        ("ctx", [JobContext]),
        ("harbor", [Harbor, FlaskHarbor]),
        ("job", [JobHandle, Job]),
        ("handle", [JobHandle]),
    ],
)
def test_every_attribute_that_a_page_names_exists(variable: str, kinds: list[type]) -> None:
    """Those in the text between blocks; the blocks are run."""
    named = {
        (page, name)
        for page in PAGES
        if not page.startswith(("docs/decisions/", "docs/extending/", "docs/migrate/"))
        for code in re.findall(r"`([^`\n]+)`", prose(page))
        for name in re.findall(rf"(?<![\w./:-]){variable}\.([a-z_]+)\b", code)
    }

    assert named
    assert [
        (page, name)
        for page, name in sorted(named)
        if not any(hasattr(kind, name) or f"{kind.__name__}.{name}" in PUBLIC for kind in kinds)
    ] == []


def test_every_file_of_the_repository_that_a_page_names_exists() -> None:
    folders = "bench|deploy|docs|examples|src|tests|tools"
    named = pages_with(rf"`((?:{folders})/[\w./@-]*\w)`")

    assert len(named) > 40
    assert {name: pages for name, pages in named.items() if not (ROOT / name).exists()} == {}


def test_files_of_the_package_that_a_page_names_exist() -> None:
    package = Path(ROOT / "src" / "taskharbor")
    named = pages_with(
        r"`((?:client|drivers|harbor|model|observe|scheduler|tasks|testing|web|worker)/[\w./]*\w)`"
    )

    assert {
        name: pages
        for name, pages in named.items()
        if not (package / name).exists() and not (ROOT / "tests" / name).exists()
    } == {}

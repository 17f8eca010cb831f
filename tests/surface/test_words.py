"""User-visible text is plain: retired words stay away, and the glossary stays short."""

import ast
import re
from pathlib import Path

import pytest

from tests.surface.public_docs import public_docs

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "taskharbor"
# A name is cut at its underscores. `cannot-tell` is a problem of the HTTP API; stand-ins may stay.
RETIRED = re.compile(
    r"(?<![a-z])(anew|whoever|in good order|(?<!behind )its like|in the hand|gives back|hear out|heard out"
    r"|said|told|telling|(?<!cannot[-_])tells?|stands|stood|standing|stand(?!-in))(?![a-z])",
    re.IGNORECASE,
)
QUOTED = re.compile(r"`[^`]*`")
# This file spells the words out, and that one names a case of the kit.
EXCEPT = {"tests/surface/test_words.py", "tests/contract/test_the_kit_finds_bugs.py"}
CODE = [
    path
    for tree in ("src", "tests", "tools", "bench")
    for path in (ROOT / tree).rglob("*")
    if path.suffix in (".py", ".sql", ".lua", ".md", ".toml", ".sh")
    and path.name != "RESULTS.md"
    and str(path.relative_to(ROOT)) not in EXCEPT
]
# Results are written by programs.
PAGES = [
    page
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
    ]
    if not page.name.endswith("-results.md")
]
MODULES = [path for path in SOURCE.rglob("*.py") if "testing" not in path.relative_to(SOURCE).parts]


def texts_of(path: Path) -> list[tuple[int, str]]:
    """The texts of a module that users may see: literals with spaces, and the docstrings of commands."""
    tree = ast.parse(path.read_text("utf-8"))
    loose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    is_command = path.parent.name == "commands"
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and " " in node.value
        and (is_command or id(node) not in loose)
    ]


def test_messages_use_everyday_words():
    found = [
        (str(path.relative_to(SOURCE)), line, text)
        for path in MODULES
        for line, text in texts_of(path)
        if RETIRED.search(text)
    ]

    assert len(MODULES) > 100
    assert found == []


def test_pages_use_everyday_words():
    found = [
        (str(page.relative_to(ROOT)), number, line)
        for page in PAGES
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if RETIRED.search(QUOTED.sub("", line))
    ]

    assert len(PAGES) > 120
    assert found == []


def test_docstrings_of_public_names_use_everyday_words():
    assert [path for path, text in public_docs().items() if text and RETIRED.search(text)] == []


def test_source_tests_tools_and_benchmarks_use_everyday_words():
    found = [
        (str(path.relative_to(ROOT)), number, line.strip())
        for path in CODE
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if RETIRED.search(line)
    ]

    assert len(CODE) > 1000
    assert found == []


def test_the_glossary_is_short_and_in_order():
    words = re.findall(
        r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs/concepts/glossary.md").read_text("utf-8"), re.MULTILINE
    )

    assert 30 <= len(words) <= 40
    assert words == sorted(words)


def test_it_finds_a_retired_word(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Said anew."""\n\nraise ValueError(f"made anew by {1}")\n')

    assert [text for _, text in texts_of(module) if RETIRED.search(text)] == ["made anew by "]


@pytest.mark.parametrize(
    ("line", "is_retired"),
    [
        ("def test_a_caller_is_told():", True),
        ("whoever_asks = None", True),
        ("# it stands here", True),
        ('"Said once."', True),
        ('kind = "cannot-tell"', False),
        ("a stand-in for the driver; standards, understands", False),
    ],
)
def test_it_finds_a_retired_word_in_names(line, is_retired):
    assert bool(RETIRED.search(line)) is is_retired


def test_two_classes_share_a_name_only_if_they_are_the_same_idea():
    """In several drivers a name is the same idea for several stores. `Connection` is one everywhere.

    Django prescribes the name of each migration, and its model of a job is a job.
    """
    homes: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).parts
        if parts[:2] == ("integrations", "django") and parts[2] in ("migrations", "models.py"):
            continue
        home = "drivers" if parts[0] == "drivers" and len(parts) > 2 else str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(home)

    assert {name: sorted(where) for name, where in homes.items() if len(where) > 1} == {
        "Connection": ["drivers", "web/connection_limits.py"]
    }

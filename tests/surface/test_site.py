"""The documentation site has every page of docs/ and every public name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import taskharbor
from tests.surface.public_docs import public_docs
from tools import docs

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def leaves(nav: Any) -> list[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in leaves(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {docs.page_name(page.relative_to(docs.DOCS).as_posix()) for page in docs.DOCS.rglob("*.md")}
    pages |= set(docs.PROJECT.values()) | {f"reference/python/{name}.md" for name in docs.API}
    decisions = {page for page in pages if page.startswith("decisions/")} - {"decisions/index.md"}

    named = leaves(CONFIG["nav"])

    assert sorted(named) == sorted(pages - decisions)


def test_every_public_name_is_on_a_page_of_the_api() -> None:
    shown = {name for _, _, names in docs.API.values() for name in names}
    own_pages = {"JobFailed", "TaskHarborError"}  # with the other errors

    assert set(taskharbor.__all__) - {"__version__"} - own_pages <= shown


def test_every_public_class_and_function_has_a_docstring() -> None:
    found = public_docs()

    def is_twin(path: str) -> bool:  # the first words of its page explain them all
        before, _, name = path.rpartition(".")
        return name.startswith("a") and f"{before}.{name[1:]}" in found

    missing = [path for path, text in found.items() if text is None and not path.endswith("__init__")]
    assert sorted(path for path in missing if not is_twin(path)) == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript", "repo_url"} & set(CONFIG)  # it asks for the number of stars


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](leases.md#end)", "[a](leases.md#end)"),
        ("[a](../README.md)", "[a](../index.md)"),
        ("[a](../decisions/README.md)", "[a](../decisions/index.md)"),
        ("[a](../../CHANGELOG.md)", "[a](../project/changelog.md)"),
        ("[a](../../Makefile)", f"[a]({docs.REPOSITORY}/blob/v1/Makefile)"),
        ("[a](../../examples)", f"[a]({docs.REPOSITORY}/tree/v1/examples)"),
        ("[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("![a](../images/job-dark.png)", "![a](../images/job-dark.png)"),
    ],
)
def test_links_hold_on_the_site(link: str, becomes: str) -> None:
    source = docs.DOCS / "concepts" / "time.md"

    assert docs.rewritten(link, source, "concepts/time.md", "v1") == becomes


def test_a_page_is_listed_with_its_title_and_first_sentence() -> None:
    text = "# Time\n\n![picture](a.png)\n\nThe [store](s.md) decides. It has a clock.\n"

    assert (docs.title_of(text), docs.first_sentence(text)) == ("Time", "The store decides.")

"""The dashboard's files: made once, for the first caller, and not when a server starts."""

import asyncio
from collections.abc import Mapping

import pytest

from taskharbor.web import pages
from taskharbor.web.page_bundles import bundled


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has an entry for each time that the files were made."""
    times: list[str] = []

    def counted(contents: Mapping[str, bytes]) -> dict[str, bytes]:
        times.append("made")
        return bundled(contents)

    monkeypatch.setattr(pages, "bundled", counted)
    pages._make.cache_clear()
    return times


async def test_files_are_made_for_the_first_caller_and_once_for_all(made: list[str]) -> None:
    one, other = pages.Pages(), pages.Pages(("'self'",))
    assert made == []

    first, second = await asyncio.gather(one.index(gzipped=True), other.index(gzipped=True))
    await one.index(gzipped=False)

    assert first.body == second.body
    assert made == ["made"]


async def test_a_file_of_another_version_is_not_sent() -> None:
    version = pages.page_files().version

    assert await pages.Pages().file(version, "app.js", gzipped=True) is not None
    assert await pages.Pages().file("0" * 16, "app.js", gzipped=True) is None
    assert await pages.Pages().file(version, "vendor/htm.js", gzipped=True) is None
    assert await pages.Pages().file(version, "index.html", gzipped=True) is None

"""docs/project/first-change.md: what it searches for is in the files that it names."""

import re

from tests.examples.pages import ROOT, shell_lines, text_of

PAGE = "docs/project/first-change.md"


def test_the_message_of_the_page_and_its_test_are_where_it_says() -> None:
    [wanted] = [found[1] for line in shell_lines(PAGE) if (found := re.fullmatch(r'git grep "(.+)"', line))]
    files = re.findall(r"`((?:src|tests)/\S+\.py)`", text_of(PAGE))

    assert len(files) == 2
    assert [name for name in files if wanted not in (ROOT / name).read_text("utf-8")] == []


def test_the_selected_tests_are_those_of_the_message() -> None:
    [chosen] = [found[1] for line in shell_lines(PAGE) if (found := re.search(r"-k (\w+)'", line))]

    assert (ROOT / "tests/unit/cli" / f"{chosen}.py").exists()

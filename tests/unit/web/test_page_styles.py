"""Style sheets: the rules stay; custom properties and some classes get short names, in scripts as well."""

import pytest

from taskharbor.web.page_styles import (
    class_names,
    short_classes,
    shorten_css,
    with_short_classes,
    with_short_names,
)


def test_of_a_style_sheet_the_rules_stay() -> None:
    written = """/* a */
    .a > .b, .c :hover { margin: 0 1px; color: red; }
    @media (max-width: 720px) {
      .d { grid-area: 1 / -1; }
    }
    """

    assert shorten_css(written) == (
        ".a > .b,.c :hover{margin:0 1px;color:red}@media (max-width:720px){.d{grid-area:1 / -1}}"
    )


def test_names_of_properties_and_classes_are_short() -> None:
    css = ":root{--ink:red;--ink-2:var(--ink)}.dim.cut,.e .failed{color:var(--ink-2);margin:.5em}"
    classes = short_classes(class_names(css))

    assert class_names(css) == {"dim", "cut", "e", "failed"}
    assert with_short_names(css, classes) == (
        ":root{--e:red;--t:var(--e)}.t.s,.e .failed{color:var(--t);margin:.5em}"
    )


KNOWN = {"dim", "cut", "failed", "num"}
TEXTS = {
    '"dim"': '"t"',
    '"num cut dim"': '"num s t"',
    "`dim ${": "`t ${",
    "} cut`": "} s`",
    '"failed"': '"failed"',
    '"dim light"': '"dim light"',
    '"to cut, to dim"': '"to cut, to dim"',
    '" "': '" "',
}


@pytest.mark.parametrize("text", TEXTS)
def test_only_a_list_of_classes_changes(text: str) -> None:
    assert with_short_classes(text, KNOWN, {"dim": "t", "cut": "s"}) == TEXTS[text]

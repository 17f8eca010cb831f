"""Markup becomes the calls that htm would make, and the code around it stays."""

import pytest

from taskharbor.web.page_markup import without_markup

SCRIPTS = {
    "an element": ("html`<p></p>`", 'html("p",0)'),
    "an element without an end": ("html`<br/>`", 'html("br")'),
    "an element that ends any": ("html`<p>a<//>`", 'html("p",0,"a")'),
    "a component": ("html`<${Row} at=${1}/>`", "html(Row,{at:1})"),
    "a component with children": ("html`<${Row}>a<//>`", 'html(Row,0,"a")'),
    "attributes": ('html`<p class="a b" hidden c=${d}/>`', 'html("p",{class:"a b",hidden:!0,c:d})'),
    "an attribute with a dash": (
        'html`<p aria-label="a" data-b/>`',
        'html("p",{"aria-label":"a","data-b":!0})',
    ),
    "spread attributes": ("html`<p ...${a} b=${c} ...${d}/>`", 'html("p",{...a,b:c,...d})'),
    "attributes on lines of their own": ('html`<p\n  a="1"\n  b=${2}\n/>`', 'html("p",{a:"1",b:2})'),
    "children": ("html`<p>a ${b} <b>c</b>${d}</p>`", 'html("p",0,"a ",b," ",html("b",0,"c"),d)'),
    "line breaks around children": ("html`\n<p>\n  ${a}\n  <b/>\n</p>\n`", 'html("p",0,a,html("b"))'),
    "a line break in a text": ("html`<p>a\n    b</p>`", 'html("p",0,"a b")'),
    "quotes in a text": ("""html`<p>a "b" 'c' …</p>`""", """html("p",0,"a \\"b\\" 'c' …")"""),
    "elements side by side": ("html`<p/>${a}<b/>`", '[html("p"),a,html("b")]'),
    "a text alone": ("html`a`", '"a"'),
    "a value alone": ("html`${a}`", "a"),
    "markup in markup": (
        "html`<p>${a && html`<b c=${`d ${e}`}>f</b>`}</p>`",
        'html("p",0,a && html("b",{c:`d ${e}`},"f"))',
    ),
    "an object in markup": ("html`<p>${f({ a: `b` })}</p>`", 'html("p",0,f({ a: `b` }))'),
    "other templates": ("a = `<p>${b}</p>`", "a = `<p>${b}</p>`"),
    "the function itself": ("const html = htm.bind(createElement);", "const html = createElement;"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_markup_becomes(name: str) -> None:
    written, calls = SCRIPTS[name]

    assert without_markup(written) == calls


@pytest.mark.parametrize(
    "written",
    [
        'html`<p class="a ${b}"/>`',
        "html`<p class='a'/>`",
        "html`<p class=${a}b/>`",
        "html`<p ...a/>`",
        "html`<p>\\n</p>`",
    ],
)
def test_what_would_mean_something_else_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"\$\{\}|not understood|backslash"):
        without_markup(written)

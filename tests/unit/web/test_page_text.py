"""Shortening scripts and style sheets: comments and spaces go, everything that means something stays."""

import pytest

from taskharbor.web.page_text import shorten_css, shorten_script

SCRIPTS = {
    "spaces around signs": ("const a = b + c;", "const a=b+c;"),
    "spaces between words": ("return typeof  name", "return typeof name"),
    "a sign and its double": ("a + +b - -c + ++d", "a+ +b- -c+ ++d"),
    "indentation": ("if (a) {\n    b();\n    c();\n}", "if(a){b();\nc();}"),
    "a line break that ends a statement": ("let a = 1\nlet b = 2", "let a=1\nlet b=2"),
    "a comment to the end of the line": ("a(); // b\nc();", "a();\nc();"),
    "a comment over lines": ("/** a\n * b */\nc();", "c();"),
    "a comment between words": ("return/* a */b", "return b"),
    "a comment in a string": ('a = "// b /* c */";', 'a="// b /* c */";'),
    "a quote in a string": (r'a = "b \" // c" + d;', r'a="b \" // c"+d;'),
    "an apostrophe in a comment": ("// it's\na();", "a();"),
    "spaces in a string": ("a = 'b   c';", "a='b   c';"),
    "a division": ("a = b / c / d; // e", "a=b/c/d;"),
    "a division after brackets": ("a = (b) / c[0] / 2; // e", "a=(b)/c[0]/2;"),
    "a regular expression": (r"a.split(/ \/ /g, 2)", r"a.split(/ \/ /g,2)"),
    "a slash in a class of a regular expression": ("a = /[/ ']+/ ; b", "a=/[/ ']+/;b"),
    "a quote in a regular expression": ("""a = b.replace(/"  '/, "c")""", """a=b.replace(/"  '/,"c")"""),
    "a regular expression that is returned": ("return /a  b/.test(c)", "return/a  b/.test(c)"),
    "a word that ends like a keyword": ("typeof_return / a / b", "typeof_return/a/b"),
    "a template": ("a = `b   // c`", "a=`b   // c`"),
    "line breaks in a template": ("a = `b\n   c`", "a=`b\n   c`"),
    "line breaks in an html template": ("html`<p>\n    ${ a }\n  </p>`", "html`<p>${a}<//>`"),
    "line breaks in a text of markup": ("html`<p>a\n  b\n  ${ c }</p>`", "html`<p>a\nb\n${c}<//>`"),
    "line breaks in a tag": ("html`<p a=${ b }\n  c=${ d }>\n  </p>`", "html`<p a=${b}\nc=${d}><//>`"),
    "ends of elements in other templates": ("`</p>`", "`</p>`"),
    "code in a template": ("`a  ${ b + `c  ${ { d : 1 } }` }  e`", "`a  ${b+`c  ${{d:1}}`}  e`"),
    "an object in a template": ("`${ f({ a }) } b  c`", "`${f({a})} b  c`"),
    "a dollar in a template": (r"`$ ${ a } \${ b }  \` $`", r"`$ ${a} \${ b }  \` $`"),
    "a template in an html template": ("html`<a b=${ `c\n   d` }/>\n  e`", "html`<a b=${`c\n   d`}/>\ne`"),
    "a private name": ("class A { #b = 1 ; c() { return this.#b } }", "class A{#b=1;c(){return this.#b}}"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_a_script_stays(name: str) -> None:
    written, short = SCRIPTS[name]

    assert shorten_script(written) == short
    assert shorten_script(short) == short


def test_a_text_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end: '`b'"):
        shorten_script("a = `b")


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

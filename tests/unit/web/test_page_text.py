"""Shortening scripts: comments and spaces go, everything that means something stays."""

import pytest

from taskharbor.web.page_text import shorten_script, tighten

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
    "line breaks in markup": ("html`<p>\n    ${ a }\n  </p>`", "html`<p>\n    ${a}\n  </p>`"),
    "code in a template": ("`a  ${ b + `c  ${ { d : 1 } }` }  e`", "`a  ${b+`c  ${{d:1}}`}  e`"),
    "an object in a template": ("`${ f({ a }) } b  c`", "`${f({a})} b  c`"),
    "a dollar in a template": (r"`$ ${ a } \${ b }  \` $`", r"`$ ${a} \${ b }  \` $`"),
    "a template in an html template": ("html`<a b=${ `c\n   d` }/>\n  e`", "html`<a b=${`c\n   d`}/>\n  e`"),
    "a private name": ("class A { #b = 1 ; c() { return this.#b } }", "class A{#b=1;c(){return this.#b}}"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_a_script_stays(name: str) -> None:
    written, short = SCRIPTS[name]

    assert shorten_script(written) == short
    assert shorten_script(short) == short


DECLARATIONS = {
    "one after the other": ("const a=1;const[b]=c;let d;e();", "let a=1,[b]=c,d;e();"),
    "after another statement": ("const a=1;b();const c=2;", "let a=1;b();let c=2;"),
    "in blocks": ("const a=()=>{const b=1;return b;};const c=2;", "let a=()=>{let b=1;return b},c=2;"),
    "in loops": ("for(const a of b)c(a);const d=1;", "for(let a of b)c(a);let d=1;"),
    "after a function": ("const a=1;\nfunction b(){}\nconst c=2;", "let a=1;function b(){}let c=2;"),
    "exported": ("const a=1;\nexport const b=2;", "let a=1;export let b=2;"),
}


@pytest.mark.parametrize("name", DECLARATIONS)
def test_declarations_share_a_word(name: str) -> None:
    written, short = DECLARATIONS[name]

    assert tighten(written) == short


def test_needless_signs_go() -> None:
    assert tighten("{a([b,],{c,});\n}\nd\n.e()\nf") == "{a([b],{c})}d.e()\nf"


def test_constants_are_short() -> None:
    assert tighten("a(true,b.true,false);return undefined;") == "a(!0,b.true,!1);return void 0;"


def test_one_parameter_needs_no_brackets() -> None:
    assert tighten("a((b)=>c,async(d)=>e,(f,g)=>h)") == "a(b=>c,async d=>e,(f,g)=>h)"


def test_a_text_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="does not end: '`b'"):
        shorten_script("a = `b")

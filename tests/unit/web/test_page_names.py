"""Short names: a variable gets the same one everywhere, and nothing else changes."""

import pytest

from taskharbor.web.page_names import shorten_names, variables

SCRIPTS = {
    "a variable": ("const first=1;use(first);", "const a=1;b(a);"),
    "a property": ("one.two=one?.two;", "a.two=a?.two;"),
    "a spread": ("use(...rest);", "a(...b);"),
    "a key": ("use({one:two,three:four?one:two});", "b({one:a,three:c?d:a});"),
    "a shorthand": ("use({one,two});", "a({one:b,two:c});"),
    "a pattern": ("const use=({one,two=one,three:four})=>two;", "const c=({one:a,two:b=a,three:d})=>b;"),
    "a pattern of a list": ("const[one,,two]=use;", "const[a,,b]=c;"),
    "a method": (
        "use({one(){return two;},async one(){},get one(){}});",
        "a({one(){return b},async one(){},get one(){}});",
    ),
    "a call in a block": ("if(one){two(one);}", "if(a){b(a)}"),
    "a class": (
        "class One extends Error{two=one;#three=1;four(five){return five;}}",
        "class b extends Error{two=c;#three=1;four(a){return a}}",
    ),
    "a name of the browser": ("document.title=String(Math.max(one));", "document.title=String(Math.max(a));"),
    "a kept name": ('import{kept}from"x";kept(one);', 'import{kept}from"x";kept(a);'),
    "an exported name": ("export const one=two;\nuse(one,two);", "export const one=a;b(one,a);"),
    "names in texts": ('one("one",`one ${one} one`,/one/);', 'a("one",`one ${a} one`,/one/);'),
    "an object in a template": ("one`${{one}}`;", "a`${{one:a}}`;"),
    "a name that is short": ("const b=1,a=2;use(b);", "const a=1,b=2;c(a);"),
    "a number": ("use(1e3,0xff,1.5);", "a(1e3,0xff,1.5);"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_a_script_changes(name: str) -> None:
    written, short = SCRIPTS[name]

    assert shorten_names({"app.js": written}, {"kept"}) == {"app.js": short}


def test_names_that_never_meet_may_be_the_same() -> None:
    script = "function first(one){return one;}\nfunction second(two){return two;}\n"

    assert shorten_names({"app.js": script}, ()) == {
        "app.js": "function b(a){return a}\nfunction c(a){return a}\n",
    }


def test_names_of_the_whole_script_never_are() -> None:
    script = "const one=1;const two=2;const{three,four}=use;const[five]=use;"

    short = shorten_names({"app.js": script}, ())["app.js"]

    assert short == "const b=1;const c=2;const{three:d,four:e}=a;const[f]=a;"


def test_a_name_is_the_same_in_both_scripts() -> None:
    scripts = {
        "app.js": "const shared=1;const own=2;use(own,own);\nexport{shared};\n",
        "pages/index.js": 'import{shared}from"../app.js";\nuse(shared);',
    }

    assert shorten_names(scripts, ()) == {
        "app.js": "const a=1;const b=2;c(b,b);export{a};",
        "pages/index.js": 'import{a}from"../app.js";c(a);',
    }


def test_variables_are_kept_apart_from_keys() -> None:
    assert variables("one.two({three:four,five});") == {"one", "four", "five"}

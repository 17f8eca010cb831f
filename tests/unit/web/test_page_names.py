"""Short names: each scope takes the first letters that are free in it, and nothing else changes."""

import pytest

from taskharbor.web.page_names import OWN, shorten_names

SCRIPTS = {
    "a variable": ("const first=1;use(first);", "let e=1;use(e);"),
    "a name of the browser": (
        "document.title=String(Math.max(one));",
        "document.title=String(Math.max(one));",
    ),
    "a property": ("const one=1;one.two=one?.two;", "let e=1;e.two=e?.two;"),
    "a spread": ("const rest=1;use(...rest);", "let e=1;use(...e);"),
    "a key": (
        "const one=1,two=2;use({one:two,three:four?one:two});",
        "let e=1,t=2;use({one:t,three:four?e:t});",
    ),
    "a shorthand": ("const one=1;use({one,two});", "let e=1;use({one:e,two});"),
    "a pattern": ("const use=({one,two=one,three:four})=>two;", "let e=({one:e,two:t=e,three:s})=>t;"),
    "a pattern of a list": ("const[one,,two]=use;one(two);", "let[e,,t]=use;e(t);"),
    "a pattern in a pattern": (
        "const use=({a:{b:[one]}},...two)=>one(two);",
        "let e=({a:{b:[e]}},...t)=>e(t);",
    ),
    "a default": ("const use=(one,two=()=>one)=>two;", "let e=(e,t=()=>e)=>t;"),
    "a method": (
        "const two=1;use({one(){return two;},async one(){},get one(){}});",
        "let e=1;use({one(){return e},async one(){},get one(){}});",
    ),
    "a class": (
        "class One extends Error{two=one;four(five){return five;}}",
        "class e extends Error{two=one;four(e){return e}}",
    ),
    "a private member": (
        "class One{#three=1;four(){return this.#three;}}",
        "class e{#e=1;four(){return this.#e}}",
    ),
    "a class of an element": ("use({class:one},()=>{const two=1;});", "use({class:one},()=>{let e=1});"),
    "an exported name": ("export const one=two;\nconst three=one;", "export let one=two;let e=one;"),
    "names in texts": (
        'const one=1;one("one",`one ${one} one`,/one/);',
        'let e=1;e("one",`one ${e} one`,/one/);',
    ),
    "an object in a template": ("const one=1;two`${{one}}`;", "let e=1;two`${{one:e}}`;"),
    "a function in a template": ("two`${(one)=>one} ${(two)=>two}`;", "two`${e=>e} ${e=>e}`;"),
    "a number": ("const one=1e3;use(one,0xff,1.5);", "let e=1e3;use(e,0xff,1.5);"),
    "a word that is also a name": (
        "const of=1,from=2,get=3;for(const set of use)set(of,from,get);",
        "let e=1,t=2,s=3;for(let n of use)n(e,t,s);",
    ),
    "a property of our own": ("const pill=1;use(one.pill,{pill},{lede:1});", "let e=1;use(one.e,{e},{t:1});"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_of_a_script_changes(name: str) -> None:
    written, short = SCRIPTS[name]

    assert {"pill", "lede"} < OWN
    assert shorten_names({"app.js": written}) == {"app.js": short}


SCOPES = {
    "functions side by side": (
        "function first(one){return one;}\nfunction second(two){return two;}\n",
        "function e(e){return e}function t(e){return e}",
    ),
    "an inner name hides an outer one that it does not need": (
        "const one=1;const two=(three)=>three;two(one);",
        "let e=1,t=e=>e;t(e);",
    ),
    "an inner name makes room for an outer one that it needs": (
        "const one=1;const two=(three)=>three(one);",
        "let e=1,t=t=>t(e);",
    ),
    "what is used before it is declared": ("two();function two(){}", "e();function e(){}"),
    "what the browser has is not hidden": ("const one=(two)=>two(e);", "let t=t=>t(e);"),
    "a parameter and a variable of the same function": (
        "function one(two){const three=1;return three;}",
        "function e(e){let t=1;return t}",
    ),
    "blocks": (
        "if(a){const one=1;use(one);}else{const two=2;use(two);}",
        "if(a){let e=1;use(e)}else{let e=2;use(e)}",
    ),
    "loops": (
        "for(const one of a)if(one)use(one);else drop(one);for(const[two]of b){use(two);}",
        "for(let e of a)if(e)use(e);else drop(e);for(let[e]of b){use(e)}",
    ),
    "an error that is caught": (
        "try{a();}catch(error){const one=1;use(error,one);}",
        "try{a()}catch(e){let t=1;use(e,t)}",
    ),
    "a short function in a choice": ("const one=a?(two)=>two?1:2:(three)=>three;", "let e=a?e=>e?1:2:e=>e;"),
    "brackets around all that is returned": ("const one=(two)=>(two?1:2);", "let e=e=>e?1:2;"),
    "brackets that are needed": (
        "const one=(two)=>({two});f((a)=>(a,b));",
        "let e=e=>({two:e});f(e=>(e,b));",
    ),
}


@pytest.mark.parametrize("name", SCOPES)
def test_scopes(name: str) -> None:
    written, short = SCOPES[name]

    assert shorten_names({"app.js": written}) == {"app.js": short}


def test_a_name_is_the_same_in_both_scripts() -> None:
    scripts = {
        "app.js": "const own=2;const shared=1;use(own,own);\nexport{shared};\n",
        "pages/index.js": 'import{shared}from"../app.js";\nconst one=shared;',
    }

    assert shorten_names(scripts) == {
        "app.js": "let e=2,t=1;use(e,e);export{t};",
        "pages/index.js": 'import{t}from"../app.js";let e=t;',
    }


def test_texts_are_handed_on() -> None:
    short = shorten_names({"app.js": 'use("one",`two ${three} four`);'}, str.upper)

    assert short == {"app.js": 'use("ONE",`TWO ${three} FOUR`);'}

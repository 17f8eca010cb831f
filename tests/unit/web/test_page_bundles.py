"""Joining modules: each runs once, after those that it imports; the second script imports from the first."""

from taskharbor.web.page_bundles import bundled

MODULES = {
    "app.js": 'import { start } from "./parts/start.js";\nimport { b } from "./b.js";\n'
    'start(b);\nimport("./pages/index.js");\n',
    "b.js": 'import { c } from "./parts/c.js";\nexport const b = c + 1;\n',
    "parts/c.js": "export const c = 1;\nconst own = 2;\nexport { own };\n",
    "parts/start.js": 'import { h, render } from "../vendor/preact.js";\n'
    'import { useState } from "../vendor/hooks.js";\n'
    'import htm from "../vendor/htm.js";\nimport { c } from "./c.js";\nconst html = htm.bind(h);\n'
    "export function start() { render(html`<p>${c}</p>`, useState); }\n",
    "pages/index.js": 'import { one } from "./one.js";\n\nexport const pages = { one };\n',
    "pages/one.js": 'import { b } from "../b.js";\nimport { c } from "../parts/c.js";\n'
    'import { d } from "../parts/d.js";\n'
    "export const one = b + c + d;\n",
    "parts/d.js": "export const d = 3;\n",
    "vendor/preact.js": "var n={};function t(n){return n}function u(){}"
    "export{n as options,t as h,t as render,u as spare};\n",
    "vendor/hooks.js": 'import{options as n}from"./preact.js";function t(){return n}export{t as useState};\n',
    "vendor/htm.js": "export default  1;\n",
    "index.html": "<p>  ASSETS/app.js</p>",
    "harbor.css": "a { b: c; }",
    "shell.css": "d { e: f; }",
    "pages.css": "g { h: i; }",
}


def sent() -> dict[str, str]:
    files = bundled({name: text.encode() for name, text in MODULES.items()})
    return {name: content.decode() for name, content in files.items()}


def test_the_first_script_has_what_it_imports_in_order() -> None:
    assert sent()["app.js"] == (
        "let[e,t,s]=(()=>{var n={};function t(n){return n}return[n,t,t]})(),"
        "[n]=(n=>{function t(){return n}return[t]})(e),"
        "a=1,r=2,l=t;"
        'function o(){s(l("p",0,a),n)}'
        "let i=a+1;"
        'o(i);import("./pages/index.js");'
        "export{i,a};"
    )


def test_the_second_script_imports_what_the_first_one_has() -> None:
    assert sent()["pages/index.js"] == (
        'import{i,a}from"../app.js";let e=3,t=i+a+e;export let pages={one:t};'
    )


def test_style_sheets_are_joined_and_all_else_is_sent_as_it_is() -> None:
    files = sent()

    assert sorted(files) == ["app.js", "index.html", "pages/index.js", "styles.css"]
    assert files["styles.css"] == "a{b:c}\nd{e:f}\ng{h:i}"
    assert files["index.html"] == MODULES["index.html"]

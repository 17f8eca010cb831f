"""Vendored modules become functions of what they import, without the functions that nobody wants."""

import pytest

from taskharbor.web.page_vendor import Vendored

BASE = (
    'var n=1;function a(t){return"}"+b(t)}function b(t){return n}function c(t){return{t}}'
    "export{n as options,a as h,b as both,c as spare};\n"
)
HOOKS = 'import{options as n}from"./base.js";function u(t){return t+n}export{u as useOne};'
MODULES = {"base.js": BASE, "hooks.js": HOOKS}
WANTED = {"h", "useOne"}


def test_the_script_declares_what_is_wanted() -> None:
    declared = Vendored(MODULES, WANTED).declared

    assert declared == 'const[options,h]="base.js"();const[useOne]="hooks.js"(options);'


def test_a_module_is_a_function_of_what_it_imports() -> None:
    script = Vendored(MODULES, WANTED).put_into('let[a]="hooks.js"(b);')

    assert script == "let[a]=(n=>{function u(t){return t+n}return[u]})(b);"


def test_a_function_that_nothing_uses_is_left_out() -> None:
    script = Vendored(MODULES, WANTED).put_into('"base.js"')

    assert script == '(()=>{var n=1;function a(t){return"}"+b(t)}function b(t){return n}return[n,a]})'


def test_a_name_that_means_something_else_is_no_use() -> None:
    module = "function a(c){return c}function c(){}export{a as one,c as two};"

    script = Vendored({"x.js": module}, {"one"}).put_into('"x.js"')

    assert script == "(()=>{function a(c){return c}return[a]})"


def test_a_module_without_exports_is_refused() -> None:
    with pytest.raises(ValueError, match="no list of exports"):
        Vendored({"x.js": "var a=1"}, set())

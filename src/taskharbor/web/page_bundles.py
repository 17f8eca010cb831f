"""Joins the modules of the dashboard into two scripts, and its style sheets into one.

    app.js          the frame and the overview: what the first view needs
    pages/index.js  every other page; it imports what it shares from app.js

Fewer, larger files compress better than many small ones. The modules of a script share one scope, in the
order in which a browser would run them. So a name at the top of a module must be unique in all of them, an
import must not rename, and exports are plain: tests check it. Variables get short names. Vendored files are
sent as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from functools import partial

from taskharbor.web.page_names import shorten_names
from taskharbor.web.page_text import shorten_css, shorten_script

FIRST = "app.js"
OTHERS = "pages/index.js"
STYLES = "styles.css"
_SHEETS = ("harbor.css", "shell.css", "pages.css")
_VENDOR = "vendor/"
_IMPORT = re.compile(r'^import(?:\{([^}]*)\}| (\w+) )from"([^"]+)";?\n?', re.MULTILINE)
_EXPORTED_LIST = re.compile(r"^export\{[^}]*\};?\n?", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|let|class)\b)", re.MULTILINE)


def bundled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that are sent, by name, made of those in `ui`."""
    scripts = {name: shorten_script(text.decode()) for name, text in contents.items() if _is_own(name)}
    first = _in_order(FIRST, scripts, set())
    others = _in_order(OTHERS, scripts, set(first))
    shared = sorted({name for one in others for name in _names_from(one, scripts[one], set(first))})
    names = ",".join(shared)
    back = posixpath.relpath(FIRST, posixpath.dirname(OTHERS))
    joined = {
        FIRST: f"{_joined(first, scripts, FIRST)}\nexport{{{names}}};\n",
        OTHERS: f'import{{{names}}}from"{back}";\n{_joined(others, scripts, OTHERS)}',
    }
    sent = {name: content for name, content in contents.items() if not _is_joined(name)}
    for name, script in shorten_names(joined, _vendored_names(scripts)).items():
        sent[name] = script.encode()
    sent[STYLES] = "\n".join(shorten_css(contents[name].decode()) for name in _SHEETS).encode()
    return sent


def _is_own(name: str) -> bool:
    return name.endswith(".js") and not name.startswith(_VENDOR)


def _is_joined(name: str) -> bool:
    return _is_own(name) or name.endswith(".css")


def _in_order(start: str, scripts: Mapping[str, str], known: set[str]) -> list[str]:
    """The modules that `start` needs, each after those that it imports; `known` ones are left out."""
    found: list[str] = []

    def visit(name: str) -> None:
        if name in known or not _is_own(name):
            return
        known.add(name)
        for wanted in _IMPORT.finditer(scripts[name]):
            visit(_path(name, wanted[3]))
        found.append(name)

    visit(start)
    return found


def _path(importer: str, written: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), written))


def _names_from(importer: str, script: str, modules: set[str]) -> set[str]:
    wanted = (found for found in _IMPORT.finditer(script) if _path(importer, found[3]) in modules)
    return {name for found in wanted for name in found[1].split(",") if name}


def _vendored_names(scripts: Mapping[str, str]) -> set[str]:
    """What is imported from vendored files, which keep their names."""
    imports = ((name, found) for name, text in scripts.items() for found in _IMPORT.finditer(text))
    vendored = (found for name, found in imports if not _is_own(_path(name, found[3])))
    return {name for found in vendored for name in (found[1] or found[2]).split(",")}


def _joined(names: list[str], scripts: Mapping[str, str], bundle: str) -> str:
    """One script of these modules: imports of each other and exports are gone."""
    here = posixpath.dirname(bundle)

    def keep_vendored(module: str, found: re.Match[str]) -> str:
        path = _path(module, found[3])
        if _is_own(path):
            return ""
        return found[0].replace(found[3], f"./{posixpath.relpath(path, here or '.')}")

    def inside(name: str) -> str:
        text = _IMPORT.sub(partial(keep_vendored, name), scripts[name])
        return (text if name == bundle else _EXPORT.sub("", _EXPORTED_LIST.sub("", text))).strip()

    return "\n".join(inside(name) for name in names)

"""Short names in the dashboard's scripts and styles: each means what the long one meant, and nothing else."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from taskharbor.web import page_bundles, page_names
from taskharbor.web.app import OPERATIONS
from taskharbor.web.openapi import openapi_document
from taskharbor.web.page_markup import without_markup
from taskharbor.web.page_names import OWN as OWN_PROPERTIES
from taskharbor.web.page_names import shorten_names
from taskharbor.web.page_scopes import Scopes, Symbol
from taskharbor.web.page_styles import CLASSES, class_names, short_classes, shorten_css, with_short_classes
from taskharbor.web.page_text import shorten_script, taken_apart
from tests.surface.test_ui_files import OWN, ROOT, UI, sent, text_of

STYLES = "".join(text_of(UI / name) for name in ("harbor.css", "shell.css", "pages.css"))
CLASS_NAMES = class_names(shorten_css(STYLES))
SERVER = ROOT / "src/taskharbor"
CALLS = {path: without_markup(text_of(path)) for path in OWN}
ELEMENTS = {tag for path in OWN for tag in re.findall(r"<([a-z][a-z0-9]*)", text_of(path))}


def texts_in(script: str) -> Counter[str]:
    """Strings, parts of templates and regular expressions, but for the paths of modules."""
    return Counter(text for text in taken_apart(script)[1] if not re.match(r'"\.', text))


TEXTS = sum(map(texts_in, CALLS.values()), Counter[str]())


def as_sent(text: str) -> str:
    return with_short_classes(text, CLASS_NAMES, short_classes(CLASS_NAMES))


def test_every_module_is_sent_and_none_twice() -> None:
    files = sent()
    scripts = texts_in(files["app.js"].decode()) + texts_in(files["pages/index.js"].decode())
    written = Counter(map(as_sent, TEXTS.elements()))
    vendored = sum((texts_in(text_of(path)) for path in (UI / "vendor").glob("*.js")), Counter[str]())

    assert written.total() > 2000
    assert written - scripts == Counter()
    assert scripts - written <= vendored


# ------------------------------------------------------------------ variables

_DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)(?: = [^,;({\n]+, (\w+) =)?", re.MULTILINE
)


def names_at_the_top() -> list[str]:
    return [name for path in OWN for found in _DECLARED.findall(text_of(path)) for name in found if name]


def test_a_name_at_the_top_is_in_one_module_only() -> None:
    names = names_at_the_top()

    assert len(names) > 400
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_modules_are_written_so_that_they_can_be_joined() -> None:
    renaming = r"^(?:import|export) (?:\*|\{[^}]*\bas\b)|^export default|^export \{[^}]*\} from"

    assert [path.name for path in OWN if re.search(renaming, text_of(path), re.MULTILINE)] == []


def test_modules_are_written_so_that_names_can_be_shortened() -> None:
    """`page_names` distinguishes keys from variables by the signs around them; these would look alike."""
    alike = r"\bswitch ?\(|\b(?:case|default) ?[^\n:?]*:|^ *\w+: *(?:for|while)\b|\bfunction ?\*|\bvar\b"

    assert [path.name for path in OWN if re.search(alike, shorten_script(text_of(path)), re.MULTILINE)] == []


@cache
def joined() -> Mapping[str, str]:
    """The two scripts with their long names."""
    with patch.object(page_bundles, "shorten_names", wraps=shorten_names) as shorten:
        sent()
    scripts: Mapping[str, str] = shorten.call_args.args[0]
    return scripts


@cache
def short() -> Mapping[str, str]:
    """The same with short names and every semicolon: scopes are found by these."""
    with patch.object(page_names, "tighten", str):
        return shorten_names(joined())


def names_of_the_browser() -> set[str]:
    """What the scripts use and do not declare."""
    return {name for script in joined().values() for name in Scopes(script).all[0].provided}


def names_used(script: str) -> Iterator[str | Symbol]:
    """Properties by name and variables by what declares them, in their order."""
    for use in Scopes(script).uses:
        if use.name and (use.symbol is None or use.is_shorthand):
            yield use.name
        if use.symbol is not None:
            yield use.symbol


def pairs(pick: Callable[[Any], bool]) -> set[tuple[Any, Any]]:
    """What is used with long names, and what is in the same places with short ones."""
    after = short()
    return {
        (old, new)
        for name, script in joined().items()
        for old, new in zip(names_used(script), names_used(after[name]), strict=True)
        if pick(old) or pick(new)
    }


def test_a_variable_means_the_same_by_its_short_name() -> None:
    found = pairs(lambda used: isinstance(used, Symbol))
    before, after = {old for old, _new in found}, {new for _old, new in found}

    assert len(found) > 2000
    assert len(before) == len(after) == len(found)
    assert all(isinstance(used, Symbol) for used in before | after)


def test_a_name_of_the_browser_keeps_its_name() -> None:
    scripts = short()

    assert {"document", "fetch", "EventSource"} < names_of_the_browser()
    for name, script in joined().items():
        assert Scopes(scripts[name]).all[0].provided == Scopes(script).all[0].provided


# ------------------------------------------------------------------ properties


@cache
def names_of_the_api() -> set[str]:
    """Every field and parameter, as the OpenAPI document has them."""
    found: set[str] = set()

    def visit(part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                visit(inner)
        elif isinstance(part, dict):
            found.update(part["properties"] if isinstance(part.get("properties"), dict) else ())
            found.update({part["name"]} if "in" in part else ())
            for inner in part.values():
                visit(inner)

    visit(openapi_document(OPERATIONS))
    return found


@cache
def words_of_the_server() -> set[str]:
    """Texts of the code that makes answers and events: a field that no schema describes is among them."""
    paths = [
        *(SERVER / "web").rglob("*.py"),
        *(SERVER / "client").rglob("*.py"),
        SERVER / "views.py",
        SERVER / "drivers/error_codec.py",
    ]
    return {word for path in paths for word in re.findall(r"""["'](\w+)["']""", text_of(path))}


@cache
def words_of_the_api() -> set[str]:
    """Names, and the parts of paths."""
    paths = {part for one in OPERATIONS for part in one.path.split("/")}
    return names_of_the_api() | paths


def test_a_property_means_the_same_by_its_short_name() -> None:
    found = pairs(lambda used: isinstance(used, str))
    changed = {old: new for old, new in found if old != new}

    assert len({old for old, _new in found}) == len({new for _old, new in found}) == len(found)
    assert {name for name in changed if not name.startswith("#")} == OWN_PROPERTIES
    assert names_of_the_api().isdisjoint(changed.values())


def test_properties_of_our_own_are_not_those_of_the_server() -> None:
    assert len(names_of_the_api()) > 200
    assert {"board", "gone", "stream", "queues_text"} < words_of_the_server()
    assert sorted(OWN_PROPERTIES & (names_of_the_api() | words_of_the_server())) == []


def test_properties_of_our_own_are_not_given_as_texts() -> None:
    """A text might be a key, as in `record[text]`; classes and paths are none."""
    texts = {text[1:-1] for text in TEXTS}

    assert sorted((OWN_PROPERTIES & texts) - CLASS_NAMES - words_of_the_api()) == []


def test_properties_of_our_own_are_not_in_addresses() -> None:
    """A link to a page holds for other versions, too."""
    addressed = re.compile(r"\bquery\??\.(\w+)|(?:route\.set\(|\bhref\([^{}()]*)\{(?:\.\.\.[\w.]+,)?(\w+)")
    found = {
        name
        for script in CALLS.values()
        for names in addressed.findall(shorten_script(script))
        for name in names
        if name
    }

    assert {"q", "window", "zone", "kind"} < found
    assert sorted(OWN_PROPERTIES & found) == []


_ATTRIBUTES = re.compile(r"html\(\0,\{")


def attributes_of_elements(script: str) -> Iterator[str]:
    """Those of plain elements, not those that a component takes."""
    code, _texts = taken_apart(script)
    for begun in _ATTRIBUTES.finditer(code):
        depth, key = 1, begun.end()
        for sign in re.finditer(r"[([{}\]),]", code[begun.end() :]):
            at = begun.end() + sign.start()
            if depth == 1 and sign[0] in ",}":
                yield code[key:at].partition(":")[0].strip()
                key = at + 1
            depth += (sign[0] in "([{") - (sign[0] in ")]}")
            if not depth:
                break


def test_an_element_has_no_property_of_our_own() -> None:
    """Preact would listen to `onClose` of a dialog, for example."""
    found = {name for script in CALLS.values() for name in attributes_of_elements(shorten_script(script))}

    assert {"class", "href", "onClick", "onSubmit", "tabindex"} < found
    assert sorted(OWN_PROPERTIES & found) == []


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_with_a_short_name_is_nothing_but_a_class(name: str) -> None:
    word = re.compile(rf"(?<![\w-]){name}(?![\w-])")
    texts = {text for text in TEXTS if word.search(text)}

    assert name in CLASS_NAMES
    assert name not in ELEMENTS | words_of_the_api()
    assert not word.search(text_of(UI / "index.html"))
    assert [text for text in texts if as_sent(text) == text] == []


def test_a_class_with_a_short_name_is_not_put_together() -> None:
    """Neither the whole nor what comes behind the sign, as in `f-${tone}`."""
    begun = {found[0] for text in TEXTS if (found := re.search(r"[\w-]+(?=\$\{\Z)", text))}
    built = {name for name in CLASS_NAMES for part in begun if name.startswith(part) and name != part}
    parts = {name.removeprefix(part) for name in built for part in begun}

    assert {"f-bad", "s-acc"} < built
    assert {"bad", "acc"} < parts
    assert sorted((built | parts) & set(CLASSES)) == []

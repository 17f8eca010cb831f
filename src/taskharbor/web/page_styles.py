"""Shortens the style sheets: no comments, no spaces, short names for custom properties and some classes.

A class keeps its name unless it is in `CLASSES`: states are classes, too, and some names are words elsewhere.
A text of the scripts that consists of names of classes is a list of them, and gets the same short names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from taskharbor.web.page_names import short_names

CLASSES = tuple(
    """
    dim cut hide soft gap1 nowrap wide mono bare acts gap2 grow tyc whc btn gapb blk two stc field panel
    err fix large palette b-bad b-none even cap need fix4 cols gap3 seg fld wash plotcard cards bareinput
    foot-keys b-run end-acts prc t-logo t-logo-on drop tgt plotfoot skrow crumb legend flush slotcell
    strong avatar brand b-dash b-ok tabbar
    """.split()  # noqa: SIM905
)
"""Those that are written often, as a whole, and are nothing but classes: tests look. They use other ones."""
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"\s*([{},;])\s*|:\s+")
_PROPERTY = re.compile(r"--([\w-]+)")
_CLASS = re.compile(r"\.([a-zA-Z][\w-]*)")
_WORD = re.compile(r"[a-zA-Z][\w-]*")
_LIST = re.compile(r"[`\"}]?[\w -]*(?:[`\"]|\$\{)?")


def shorten_css(text: str) -> str:
    """The same rules without comments and without spaces around braces, commas, semicolons and after colons.

    A text in `content:` must not hold these signs; a test looks.
    """
    plain = _COMMENT.sub("", text)
    return _SPACE.sub(lambda found: found[1] or ":", plain).replace(";}", "}").strip()


def with_short_names(css: str, classes: Mapping[str, str]) -> str:
    properties = dict(zip(dict.fromkeys(_PROPERTY.findall(css)), short_names(), strict=False))
    css = _PROPERTY.sub(lambda found: f"--{properties[found[1]]}", css)
    return _CLASS.sub(lambda found: f".{classes.get(found[1], found[1])}", css)


def class_names(css: str) -> set[str]:
    """Every class that a rule names."""
    return set(_CLASS.findall(re.sub(r"\{[^{}]*\}", "{}", css)))


def short_classes(known: set[str]) -> dict[str, str]:
    free = (short for short in short_names() if short not in known)
    return dict(zip(CLASSES, free, strict=False))


def with_short_classes(literal: str, known: set[str], shorter: Mapping[str, str]) -> str:
    """A text of a script; only a list of classes changes."""
    words = _WORD.findall(literal)
    if not words or not _LIST.fullmatch(literal) or not known.issuperset(words):
        return literal
    return _WORD.sub(lambda found: shorter.get(found[0], found[0]), literal)

"""Error texts that every store can keep."""

import pytest

from taskharbor.model.text import safe_text, with_article


@pytest.mark.parametrize("text", ["", "plain", "ä 🐍 \n\t\x1b[31m", "x" * 100])
def test_a_harmless_text_stays_as_it_is(text):
    assert safe_text(text, 100) == text


def test_nul_and_lone_surrogates_are_replaced():
    assert safe_text("a\0b", 100) == "a\ufffdb"
    assert safe_text("a\ud800b\udfff", 100) == "a?b?"


@pytest.mark.parametrize("letter", ["a", "ä", "€", "🐍", "\0", "\ud800"])
def test_a_cut_text_fits_its_limit_and_is_valid(letter):
    for count in range(1, 60):
        cut = safe_text(letter * count, 16)

        assert len(cut.encode()) <= 16, count
        assert "\0" not in cut, count


def test_a_cut_is_shown_by_an_ellipsis_and_only_then():
    assert safe_text("x" * 16, 16) == "x" * 16
    assert safe_text("x" * 17, 16) == "x" * 13 + "…"


def test_a_cut_falls_between_characters():
    assert safe_text("🐍" * 5, 16) == "🐍" * 3 + "…"


@pytest.mark.parametrize(("name", "phrase"), [("int", "an int"), ("Worker", "a Worker"), ("", "a ")])
def test_a_name_gets_the_article_it_sounds_with(name, phrase):
    assert with_article(name) == phrase

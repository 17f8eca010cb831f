"""Nothing in a job or a URL may steer a terminal or give a password away."""

import io

import pytest

from taskharbor.cli.terminal import clean, is_fancy, one_line, safe_json, without_passwords


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain ümläut 漢字 🙂", "plain ümläut 漢字 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b(Bletters\x1bc", "letters"),
        ("bell\x07 back\x08 null\x00 del\x7f", "bell back null del"),
        ("right\u202eleft\u2066", "rightleft"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("carriage\rreturn", "carriagereturn"),
        ("cut off \x1b[", "cut off "),
    ],
)
def test_escape_sequences_and_controls_are_taken_out(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_cell_is_one_line() -> None:
    assert one_line("  a\nb\t c  ") == "a b c"


def test_json_keeps_the_data_and_loses_the_controls() -> None:
    assert safe_json('"\x9b\u202e\x7f"') == '"\\u009b\\u202e\\u007f"'


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://user:hunter2@host/db",
        "redis://:hunter2@host:6379/0 refused",
        "postgresql://user:hun@ter2@host/db",
        "postgresql://host/db?user=x&password=hunter2&sslmode=require",
        "password authentication failed, used hunter2",
    ],
)
def test_passwords_are_hidden_wherever_they_are(text: str) -> None:
    shown = without_passwords(text, "postgresql://user:hunter2@host/db")

    assert "hunter2" not in shown
    assert "ter2" not in shown
    assert "***" in shown


def test_a_broken_url_is_no_reason_to_fail() -> None:
    assert without_passwords("text", "postgresql://[::1", None, "") == "text"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_gets_boxes_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert is_fancy(Screen())
    assert not is_fancy(io.StringIO())
    assert not is_fancy(Screen(), no_color=True)

    monkeypatch.setenv("FORCE_COLOR", "1")
    assert is_fancy(io.StringIO())

    monkeypatch.setenv("TERM", "dumb")
    assert not is_fancy(Screen())

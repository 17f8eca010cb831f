"""What leaves the process: passwords hidden, in time that grows with the text and no faster."""

import pytest

from taskharbor.cli.terminal import one_line, safe_json
from taskharbor.observe.plain_text import clean, without_passwords
from tests.unit.growth import assert_linear


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:pa55@db/jobs", "postgresql://me:***@db/jobs"),
        ("see redis+cluster://:pa55@one:7000,two:7000/0.", "see redis+cluster://:***@one:7000,two:7000/0."),
        ("http://me:p@55@host/x?token=abc&limit=1", "http://me:***@host/x?token=***&limit=1"),
        ("two: a://b:c@d and e://f:g@h", "two: a://b:***@d and e://f:***@h"),
        ("a://b://c:d@e", "a://b://c:***@e"),
        ("no secret: http://host:8080/a@b", "no secret: http://host:8080/a@b"),
        ("12:30 somebody@example.org", "12:30 somebody@example.org"),
    ],
)
def test_passwords_of_urls_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


LONG = {
    "a word": lambda n: "a" * n,
    "words": lambda n: "word " * n,
    "colons and slashes": lambda n: "://" * n,
    "a user without an end": lambda n: "a://" + "b" * n,
    "a password without an end": lambda n: "a://b:" + "c" * n,
    "many users": lambda n: "a://b:" * n,
    "many at signs": lambda n: "a://b:" + "@" * n + "/",
    "many urls": lambda n: "a://b:c@d " * n,
    "many parameters": lambda n: "?token=" * n,
    "escapes": lambda n: "\x1b[" * n,
    "an escape without an end": lambda n: "\x1b]" * n,
    "parameters of an escape": lambda n: "\x1b[" + "0;" * n,
    "spaces": lambda n: " " * n,
    "hex": lambda n: ("a" * 31 + "g") * (n // 32),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("act", [without_passwords, clean, one_line, safe_json])
def test_long_text_takes_time_in_proportion(act, kind) -> None:
    assert_linear(act, LONG[kind], 2048)

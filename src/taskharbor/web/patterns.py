"""How the texts in a message look, as JSON Schema: names, ids, bytes, spans, instants, cron expressions.

Each takes everything that the readers and checks take, and as little else as a pattern can. A JSON Schema
pattern has no flags, so upper and lower case are both written out where either is read.
"""

from __future__ import annotations

from typing import Any

from taskharbor.model.checks import MAX_KEY, MAX_TEXT

Schema = dict[str, Any]

# ------------------------------------------------------------------ names and bytes

_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_UNPRINTABLE = (
    r"\x00-\x1f\x7f-\xa0\xad\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ue000-\uf8ff\ufeff\ufff0-\ufffb"
)

NAME: Schema = {"pattern": f"^{_NAME}$"}
NAME_OR_ALL: Schema = {"pattern": rf"^(\*|{_NAME})$"}
ID: Schema = {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"}
WORKER_ID: Schema = {"minLength": 1, "maxLength": 255, "pattern": f"^[^{_UNPRINTABLE}]+$"}
TEXT: Schema = {"maxLength": MAX_TEXT, "pattern": f"^[^{_UNPRINTABLE}]*$"}
NO_NUL: Schema = {"pattern": r"^[^\x00]*$"}
BYTES: Schema = {"pattern": _BASE64}
KEY: Schema = {"pattern": _BASE64, "minLength": 4, "maxLength": 4 * (MAX_KEY // 3)}

# ------------------------------------------------------------------ time

# Digits that a number may have before it is more than ten years by itself.
_WITHIN_TEN_YEARS = {"d": "0*[0-9]{1,4}", "h": "0*[0-9]{1,5}", "m": "0*[0-9]{1,7}", "s": "0*[0-9]{1,9}"}
_WITHIN_A_DAY = {"d": "0*[01]", "h": "0*[0-9]{1,2}", "m": "0*[0-9]{1,4}", "s": "0*[0-9]{1,5}"}
_ANY_NUMBER = dict.fromkeys("dhms", "[0-9]+")


def _duration(digits: dict[str, str]) -> str:
    """ISO 8601 from days to seconds, of which only the last number has a fraction."""
    whole = {unit: f"({number}[{unit.upper()}{unit}])?" for unit, number in digits.items()}
    last = {unit: rf"{number}(\.[0-9]+)?[{unit.upper()}{unit}]" for unit, number in digits.items()}
    time = f"{whole['h']}{whole['m']}{last['s']}|{whole['h']}{last['m']}|{last['h']}"
    return f"[Pp]({last['d']}|{whole['d']}[Tt]({time}))"


_YEAR = (
    "(1969|19[7-9][0-9]|2[01][0-9]{2}|2200)"  # an instant of 1970 may be written as one of the evening before
)
_DAY = "(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
_ZONE = "([Zz]|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])"

ANY_SPAN: Schema = {"pattern": f"^[+-]?{_duration(_ANY_NUMBER)}$"}
SPAN: Schema = {"pattern": rf"^\+?{_duration(_WITHIN_TEN_YEARS)}$"}
SHORT_SPAN: Schema = {"pattern": rf"^\+?{_duration(_WITHIN_A_DAY)}$"}
SHORT_TIME: Schema = {**SHORT_SPAN, "allOf": [{"pattern": "[1-9]"}]}
SOME_TIME: Schema = {**SPAN, "allOf": [{"pattern": "[1-9]"}]}
ANY_INSTANT: Schema = {"pattern": f"^[0-9]{{4}}-{_DAY}[Tt ]{_CLOCK}{_ZONE}?$"}
INSTANT: Schema = {"format": "date-time", "pattern": f"^{_YEAR}-{_DAY}[Tt ]{_CLOCK}{_ZONE}$"}
TIME_ZONE: Schema = {
    "pattern": "^[A-Za-z0-9_+.-]+(/[A-Za-z0-9_+.-]+)*$",
    "examples": ["UTC", "Europe/Berlin"],
}

# ------------------------------------------------------------------ cron


def _any_case(words: str) -> str:
    return "|".join("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in words.split())


def _field(value: str, *others: str) -> str:
    """A list of values, ranges and steps; `others` are what only this field has."""
    step = "(/0*[1-9][0-9]*)?"
    item = "|".join((rf"(\*|({value})(-({value}))?){step}", *others))
    return f"({item})(,({item}))*"


_ALIAS = _any_case("yearly annually monthly weekly daily midnight hourly")
_MONTH = "0*([1-9]|1[0-2])|" + _any_case("jan feb mar apr may jun jul aug sep oct nov dec")
_WEEKDAY = "0*[0-7]|" + _any_case("sun mon tue wed thu fri sat")
_CRON = r"\s+".join(
    (
        _field("0*[0-5]?[0-9]"),
        _field("0*(1?[0-9]|2[0-3])"),
        _field("0*([1-9]|[12][0-9]|3[01])", "[Ll][Ww]?(/0*[1-9][0-9]*)?"),
        _field(_MONTH),
        _field(_WEEKDAY, f"({_WEEKDAY})#0*[1-5]", "0*[0-7][Ll]"),
    )
)
CRON: Schema = {
    "maxLength": 256,
    "pattern": rf"^\s*(@({_ALIAS})|({_field('0*[0-5]?[0-9]')}\s+)?{_CRON})\s*$",
    "examples": ["0 3 * * *", "@daily"],
}

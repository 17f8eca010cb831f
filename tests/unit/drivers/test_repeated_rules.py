"""SQL and Lua that repeat a rule for speed name the Python function, and a kit case compares the two."""

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import taskharbor.drivers
from taskharbor.testing import conformance

DRIVERS = Path(taskharbor.drivers.__file__).parent
KIT = Path(conformance.__file__).parent
NAMED = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) in\s+(?:-- )?((?:drivers|model)/[\w/]+)\.py")
FILES = sorted([*DRIVERS.rglob("*.lua"), *DRIVERS.rglob("*.sql")])


def rules_named_in(path: Path) -> set[tuple[str, str]]:
    """(module, function) of every rule that a comment of this file names."""
    return {
        (module.replace("/", "."), name)
        for names, module in NAMED.findall(path.read_text("utf-8"))
        for name in re.findall(r"`([\w.]+)`", names)
    }


def test_a_named_rule_exists():
    for path in FILES:
        for module, name in rules_named_in(path):
            try:
                attrgetter(name)(import_module(f"taskharbor.{module}"))
            except AttributeError:
                raise AssertionError(f"{path.name} names {module}.{name}") from None


def test_every_transition_that_is_repeated_is_compared():
    """Functions over several records are compared by the cases of their verb."""
    named = set().union(*map(rules_named_in, FILES))
    repeated = {name for module, name in named if module == "model.transitions"}
    compared = set(re.findall(r"\w+", (KIT / "same_rules.py").read_text("utf-8")))

    assert repeated >= {"claimed", "extended", "lease_error", "new_record", "settled"}
    assert repeated <= compared

"""SQL and Lua that repeat a rule for speed name the Python function, and a kit case compares the two."""

import ast
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


def names_used_in(path: Path) -> set[str]:
    """The names that the code of a module reads; imports, comments and texts do not count."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_every_rule_of_the_model_that_is_repeated_is_compared():
    """Functions over several records, in drivers, are compared by the cases of their verb."""
    named = set().union(*map(rules_named_in, FILES))
    repeated = {name.rpartition(".")[2] for module, name in named if module.startswith("model.")}
    compared = set().union(*map(names_used_in, KIT.glob("same_*rules.py")))

    assert repeated >= {"claimed", "extended", "lease_error", "new_record", "settled"}
    assert repeated >= {
        "with_end",
        "released",
        "finished",
        "role_after",
        "advanced",
        "may_take",
        "retention_of",
    }
    assert sorted(repeated - compared) == []

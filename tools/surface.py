"""make surface: every public name with its signature, one per line, into tests/surface/public_api.txt.

A change of that file is a change that users can notice. A removed or changed line needs the word *breaking*
in CHANGELOG.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "surface" / "public_api.txt"
MODULES = (
    "taskharbor",
    "taskharbor.types",
    "taskharbor.errors",
    "taskharbor.testing",
    "taskharbor.drivers.contract",
    "taskharbor.drivers.messages",
)


def main() -> int:
    FILE.write_text("\n".join([*lines(), ""]), "utf-8")
    return 0


def lines() -> list[str]:
    package = griffe.load("taskharbor", search_paths=[ROOT / "src"], resolve_aliases=True)
    found: list[str] = []
    for module in (*MODULES, *integrations()):
        where = package if module == "taskharbor" else package[module.removeprefix("taskharbor.")]
        found += _of(where, module)
    return found


def integrations() -> list[str]:
    """The modules that a framework's users import."""
    folder = ROOT / "src" / "taskharbor" / "integrations"
    names = [path.stem for path in folder.glob("*.py")] + [
        path.parent.name for path in folder.glob("*/__init__.py")
    ]
    return [f"taskharbor.integrations.{name}" for name in sorted(names) if not name.startswith("_")]


def _of(module: griffe.Object | griffe.Alias, path: str) -> Iterator[str]:
    exported = module.exports and {str(name) for name in module.exports}
    for name, member in sorted(module.members.items()):
        is_listed = name in exported if exported else not name.startswith("_") and not member.is_alias
        if is_listed and not (member.is_module or name == "__version__"):
            yield from _described(member, f"{path}.{name}")


def _described(member: griffe.Object | griffe.Alias, path: str) -> Iterator[str]:
    target = member.final_target if isinstance(member, griffe.Alias) else member
    if isinstance(target, griffe.Class):
        bases = ", ".join(str(base) for base in target.bases)
        yield f"class {path}({bases})"
        for name, inner in sorted(target.members.items()):
            if name == "__init__" or not name.startswith("_"):
                yield from _described(inner, f"{path}.{name}")
    elif isinstance(target, griffe.Function):
        parameters = ", ".join(map(_parameter, target.parameters))
        yield f"def {path}({parameters}) -> {target.returns}"
    elif isinstance(target, griffe.Attribute):
        yield f"{path}: {target.annotation or ''}".rstrip(": ")


def _parameter(parameter: griffe.Parameter) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    sign = stars.get(parameter.kind, "") if parameter.kind else ""
    only = "(keyword) " if parameter.kind is griffe.ParameterKind.keyword_only else ""
    annotation = f": {parameter.annotation}" if parameter.annotation else ""
    default = f" = {parameter.default}" if parameter.default is not None and not sign else ""
    return f"{only}{sign}{parameter.name}{annotation}{default}"


if __name__ == "__main__":
    sys.exit(main())

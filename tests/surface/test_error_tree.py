"""The drawing of the errors and the classes say the same."""

import builtins
import inspect
import re

import pytest

from taskharbor import errors

LINE = re.compile(r"^(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>\w+)(?: \((?P<builtin>\w+)\))?(?:  .*)?$")


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Name → (parent in the drawing, builtin in brackets), read from the module's docstring."""
    lines = (errors.__doc__ or "").splitlines()
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in lines[lines.index("TaskHarborError") :]:
        if not line.strip():
            break
        match = LINE.match(line)
        assert match, f"the drawing cannot be read: {line!r}"
        depth = 0 if line[0] not in "│├└ " else len(match["indent"]) // 4 + 1
        above[depth:] = [match["name"]]
        tree[match["name"]] = (above[depth - 1] if depth else None, match["builtin"])
    return tree


def defined() -> dict[str, tuple[str | None, str | None]]:
    """The same, read from the classes."""
    classes = {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls.__module__ == errors.__name__ and issubclass(cls, Exception) and not issubclass(cls, Warning)
    }
    tree: dict[str, tuple[str | None, str | None]] = {}
    for name, cls in classes.items():
        ours = [base.__name__ for base in cls.__bases__ if base.__name__ in classes]
        foreign = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
        tree[name] = (ours[0] if ours else None, foreign[0] if foreign and ours else None)
    return tree


def test_the_drawing_shows_every_error_in_its_place() -> None:
    assert drawn() == defined()


def test_the_drawing_is_more_than_its_root() -> None:
    assert len(drawn()) > 25


@pytest.mark.parametrize("name", sorted(defined()))
def test_every_error_has_a_docstring_and_shadows_no_builtin(name: str) -> None:
    cls = getattr(errors, name)

    assert cls.__doc__
    assert not hasattr(builtins, name)

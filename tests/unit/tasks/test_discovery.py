"""Modules that hold tasks, imported by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.errors import ConfigurationError
from taskharbor.tasks.discovery import import_modules


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose modules each define a task on the harbor of its top."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "shop"
    (folder / "jobs").mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from taskharbor import Harbor\nharbor = Harbor('memory://', include=['shop'])\n"
    )
    task = "from shop import harbor\n@harbor.task\ndef {}(): ...\n"
    (folder / "mail.py").write_text(task.format("send"))
    (folder / "jobs" / "__init__.py").write_text("")
    (folder / "jobs" / "nightly.py").write_text(task.format("clean"))
    (folder / "__main__.py").write_text("raise SystemExit('this is a program')")
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def harbor() -> Harbor:
    found = sys.modules["shop"].harbor
    assert isinstance(found, Harbor)
    return found


def test_a_module_is_imported_alone_and_a_package_with_all_beneath_it(shop: Path) -> None:
    import_modules(["shop.mail"])
    assert [task.name for task in harbor().tasks] == ["send"]

    import_modules(["shop"])
    assert [task.name for task in harbor().tasks] == ["clean", "send"]


def test_a_worker_of_a_harbor_knows_the_tasks_of_what_it_includes(shop: Path) -> None:
    import_modules(["shop.mail"])

    assert harbor().worker().types == ("clean", "send")


def test_what_is_not_there_or_raises_is_named(shop: Path) -> None:
    (shop / "jobs" / "broken.py").write_text("import no_such_library")

    with pytest.raises(ConfigurationError, match=r"'shop\.nosuch': there is no module"):
        import_modules(["shop.nosuch"])
    with pytest.raises(
        ConfigurationError,
        match=r"'shop\.jobs\.broken' failed at .*broken\.py, line 1: .*No module named 'no_such_library'",
    ):
        import_modules(["shop"])
    for code, error in (
        ("1 / 0", "ZeroDivisionError"),
        ("int('x')", "ValueError"),
        ("exit(3)", "SystemExit: 3"),
    ):
        (shop / "jobs" / "broken.py").write_text(f"# no task\n{code}")
        with pytest.raises(ConfigurationError, match=rf"broken' failed at .*broken\.py, line 2: {error}"):
            import_modules(["shop.jobs"])
    for name in ("", ".mail", "shop/mail.py"):
        with pytest.raises(ConfigurationError, match="no name of a module"):
            import_modules([name])


def test_include_takes_a_list() -> None:
    with pytest.raises(ConfigurationError, match=r"include=\['shop'\]"):
        Harbor("memory://", include="shop")

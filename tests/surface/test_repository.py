"""What the repository itself promises: nothing of one machine in it, and a complete wheel out of it."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "taskharbor"

# Written in pieces, so that this file does not find itself.
MACHINE_PATHS = re.compile(r"(?<![\w.$}~/-])/(?:" + "|".join(["work", "root"]) + r")/")
REGISTRY_HOSTS = re.compile(
    "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", r"https?://[^\s/]*/simple" + "/"])
)


def repository_files() -> list[Path]:
    """Return what git tracks or would track; all of it text or small enough to read."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip(f"git cannot list this checkout: {listing.stderr.decode().strip()}")
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in repository_files()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert lines_matching(MACHINE_PATHS) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_matching(REGISTRY_HOSTS) == []


def test_there_is_no_lock_file_of_an_index() -> None:
    assert [path for path in repository_files() if path.name == "uv.lock"] == []


def test_the_wheel_holds_every_file_of_the_package_with_its_sql_and_lua(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())

    assert wanted_in_wheel() - packed == set()
    assert [name for name in packed if re.search(r"\.dist-info/sboms/vendor\.cdx\.json$", name)]


def test_the_sdist_holds_everything_that_its_tests_read(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}

    wanted = {path.relative_to(ROOT).as_posix() for path in repository_files()}
    assert {
        name
        for name in wanted - packed
        if not name.startswith((".gitignore", ".gitattributes", ".editorconfig"))
    } == set()


def test_an_installation_brings_nothing_that_nobody_uses() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]

    assert "client" not in extras
    assert not [one for one in extras["server"] if "standard" in one]
    assert any(re.fullmatch(r"uvicorn>=[\d.]+,<[\d.]+", one) for one in extras["server"])


def wanted_in_wheel() -> set[str]:
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in repository_files()
        if path.is_relative_to(PACKAGE)
    }


def test_bare_make_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    listing = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = set(re.findall(r"^  make ([a-z-]+) +\S", listing.stdout, re.MULTILINE))

    assert listed == targets


def test_folders_of_tests_list_their_files_by_promise() -> None:
    """Tests are filed by behaviour: the README of each folder says which file holds which."""
    wrong = []
    for folder in sorted({path.parent for path in (ROOT / "tests").rglob("test_*.py")}):
        page = folder / "README.md"
        listed = set(re.findall(r"^- `(test_\w+\.py)`: .", page.read_text("utf-8"), re.MULTILINE))
        there = {path.name for path in folder.glob("test_*.py")}
        wrong += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(listed ^ there)]

    assert wrong == [], "listed but not there, or there but not listed: `make fix` writes the lists"


def test_tests_start_processes_as_from_a_terminal_where_signals_are_ignored(tmp_path: Path) -> None:
    """Under nohup, in cron and in the background of a script a run ignores signals; its children must not."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_inherited.py").write_text(_LOOKS_AT_A_CHILD, "utf-8")
    ignoring = "import signal, sys, pytest\n" + "".join(
        f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in ("SIGINT", "SIGQUIT", "SIGHUP")
    )

    options = ["-q", "-p", "no:cacheprovider", "-n", "1", "--rootdir", str(tmp_path), str(tmp_path)]
    run = f"{ignoring}sys.exit(pytest.main({options!r}))"
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


_LOOKS_AT_A_CHILD = """
import subprocess, sys

LOOK = (
    "from signal import SIG_IGN, SIGHUP, SIGINT, SIGQUIT, getsignal;"
    "print([number.name for number in (SIGINT, SIGQUIT, SIGHUP) if getsignal(number) is SIG_IGN])"
)

def test_a_child_ignores_nothing():
    shown = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
"""

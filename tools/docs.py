"""make docs: the documentation site, built strictly and without a network, into build/docs/site.

The pages of docs/ are what people read in the repository; here they become a site. Links that leave docs/
become links to the repository, the API pages are made from the docstrings, and beside the HTML of each
page lies its Markdown, listed in llms.txt.

    make docs                        for reading: links lead to the branch main
    make docs ARGS='--ref v0.1.0'    for a release: links lead to its tag
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "docs"
PAGES = BUILD / "pages"
SITE = BUILD / "site"
REPOSITORY = "https://github.com/taskharbor/taskharbor"

PROJECT = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
"""Pages of the site that are files beside docs/. The home page is docs/home.md, with parts of the README."""

TWINS = "A method that begins with `a` is awaited and otherwise the same: `aget` is `get` for async code."

API: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "harbor": (
        "Harbor and tasks",
        f"A harbor makes tasks out of functions, and jobs out of calls. {TWINS}",
        ("Harbor", "Task", "AsyncTask", "RetryPolicy", "Speculate", "FailedJob"),
    ),
    "client": (
        "Clients and handles",
        f"A client stores and finds jobs by type, also of tasks that this program does not have. {TWINS}",
        ("Client", "JobHandle", "JobRequest", "Query", "Update"),
    ),
    "worker": (
        "Workers and handlers",
        "A worker claims jobs and runs their handlers. A handler gets a `JobContext`. It may return `Snooze` "
        "or `Cancel`, and raise `Unrecoverable`.",
        ("Worker", "WorkerOptions", "JobContext", "Snooze", "Cancel", "Unrecoverable"),
    ),
    "jobs": (
        "Jobs and queues",
        "A job as a handler sees it and as the store keeps it, and the settings of a queue. "
        "[The job record](../job-record.md) explains every field.",
        (
            *("Job", "JobRecord", "JobState", "QueueSettings", "RateLimit", "Retention"),
            *("JsonCodec", "MsgpackCodec"),
        ),
    ),
    "errors": ("Errors", "Every error that calls raise. Each is a `TaskHarborError`.", ("errors",)),
    "types": (
        "Types of answers",
        f"What calls return and take, for annotations of your own. {TWINS}",
        ("types",),
    ),
    "events": (
        "Events",
        "What clients, workers and schedulers report, and how to listen to it.",
        ("events",),
    ),
    "testing": ("Testing", "Helpers for the tests of your own code.", ("testing",)),
    "integrations": (
        "Frameworks",
        "One module per framework. Each imports its framework only when you import it.",
        tuple(f"integrations.{name}" for name in ("asgi", "django", "flask", "sentry", "sqlalchemy")),
    ),
    "contract": (
        "Driver contract",
        "What a store must do, for authors of drivers. The guide is "
        "[Write a driver](../../extending/write-a-driver.md).",
        ("drivers.contract", "drivers.messages"),
    ),
}
"""Each page of the API with its title, its first words, and what it shows of the package `taskharbor`."""

_PART = re.compile(r"^<!-- README: (.+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--ref", default="main", help="the branch or tag that links to code lead to")
    return build(parser.parse_args().ref, ROOT / "mkdocs.yml")


def build(ref: str, config: Path) -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    write_pages(ref)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(config)]
    built = subprocess.run(command, cwd=ROOT, check=False)
    if built.returncode == 0:
        write_texts()
        write_search()
        print(f"docs: {len(list(SITE.rglob('*.html')))} pages in build/docs/site")
    return built.returncode


def write_pages(ref: str) -> None:
    for source in sorted(DOCS.rglob("*")):
        if source == DOCS / "README.md":  # a list of pages, which the site has in its navigation
            continue
        name = page_name(source.relative_to(DOCS).as_posix())
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            text = rewritten(source.read_text("utf-8"), source, name, ref)
            target.write_text(with_readme_parts(text, name, ref), "utf-8")
        elif source.is_file():
            shutil.copyfile(source, target)
    for source_name, name in PROJECT.items():
        source = ROOT / source_name
        if name == "index.md":
            continue
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewritten(source.read_text("utf-8"), source, name, ref), "utf-8")
    for name, (title, first, names) in API.items():
        target = PAGES / "reference" / "python" / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        shown = "\n\n".join(f"::: taskharbor.{one}" for one in names)
        target.write_text(f"# {title}\n\n{first}\n\n{shown}\n", "utf-8")


def with_readme_parts(text: str, name: str, ref: str) -> str:
    """The page of this name with the sections of the README that it asks for."""
    source = ROOT / "README.md"

    def part(match: re.Match[str]) -> str:
        title = match[1]
        whole = rf"^## {re.escape(title)}\n.*?(?=^## |\Z)"
        [section] = re.findall(whole, source.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        return rewritten(section, source, name, ref).rstrip()

    return _PART.sub(part, text)


def page_name(name: str) -> str:
    """A folder's README is its first page; that of docs/ is home.md."""
    return "index.md" if name == "home.md" else re.sub(r"(^|/)README\.md$", r"\1index.md", name)


def rewritten(text: str, source: Path, name: str, ref: str) -> str:
    """The page with links that hold on the site: to pages of it, or else to the repository."""

    def linked(match: re.Match[str]) -> str:
        anchor = match["anchor"] or ""
        file = _place(source, match["target"])
        target = _page_of(file)
        if target is None:
            kind = "tree" if (ROOT / file).is_dir() else "blob"
            return f"[{match['text']}]({REPOSITORY}/{kind}/{ref}/{file}{anchor})"
        return f"[{match['text']}]({posixpath.relpath(target, posixpath.dirname(name) or '.')}{anchor})"

    images = posixpath.relpath("images", posixpath.dirname(name) or ".")
    return _LINK.sub(linked, text).replace("docs/images/", f"{images}/")


def _place(source: Path, target: str) -> str:
    """The file that a link of this one names, from the root of the repository."""
    folder = source.parent.relative_to(ROOT).as_posix()
    return posixpath.normpath(posixpath.join(folder, target))


def _page_of(file: str) -> str | None:
    """The page of the site that a file of the repository becomes."""
    if file.startswith("docs/") and (ROOT / file).is_file():
        return page_name(file.removeprefix("docs/"))
    return PROJECT.get(file)


def write_texts() -> None:
    """llms.txt lists every page with its first sentence, llms-full.txt holds them all."""
    lines, whole = ["# TaskHarbor", "", "> Background jobs for Python that survive crashes.", ""], []
    for page in sorted(PAGES.rglob("*.md")):
        name, text = page.relative_to(PAGES).as_posix(), page.read_text("utf-8")
        copy = SITE / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, "utf-8")
        lines.append(f"- [{title_of(text)}]({name}): {first_sentence(text)}")
        whole.append(text.strip())
    (SITE / "llms.txt").write_text("\n".join([*lines, ""]), "utf-8")
    (SITE / "llms-full.txt").write_text("\n\n---\n\n".join(whole) + "\n", "utf-8")


def write_search() -> None:
    """Search for guides first: members of classes are found by their class, and decisions not at all."""
    file = SITE / "search.json"
    found = json.loads(file.read_text("utf-8"))
    found["items"] = searched(found["items"])
    file.write_text(json.dumps(found, ensure_ascii=False), "utf-8")


def searched(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = {}
    for item in items:
        page, _, anchor = item["location"].partition("#")
        owner, _, name = anchor.rpartition(".")
        is_member = page.startswith("reference/python/") and owner.rpartition(".")[2][:1].isupper()
        if is_member and (whole := kept.get(f"{page}#{owner}")):
            whole["text"] += f" <p><code>{name}</code></p>"
        elif not page.startswith("decisions/"):
            kept[item["location"]] = dict(item)
    return list(kept.values())


def title_of(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def first_sentence(text: str) -> str:
    """Of the first paragraph that is prose."""
    for block in text.split("\n\n")[1:]:
        if re.match(r"[A-Za-z`*\[]", block):
            plain = _LINK.sub(lambda match: match["text"], " ".join(block.split()))
            return re.split(r"(?<=[.:!?])\s", plain, maxsplit=1)[0]
    return ""


if __name__ == "__main__":
    sys.exit(main())

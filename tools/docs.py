"""make docs: the documentation site, built strictly and without a network, into build/docs/site.

The pages of docs/ are what people read in the repository; here they become a site. Links that leave docs/
become links to the repository, the API pages are made from the docstrings, and beside the HTML of each
page lies its Markdown, listed in llms.txt.

    make docs                        for reading: links lead to the branch main
    make docs ARGS='--ref v0.1.0'    for a release: links lead to its tag
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
}
"""Pages of the site that are files beside docs/."""

API: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "harbor": ("Harbor and tasks", ("Harbor", "Task", "AsyncTask", "RetryPolicy", "Speculate", "FailedJob")),
    "client": ("Clients and handles", ("Client", "JobHandle", "JobRequest", "Query", "Update")),
    "worker": (
        "Workers and handlers",
        ("Worker", "WorkerOptions", "JobContext", "Snooze", "Cancel", "Unrecoverable"),
    ),
    "jobs": (
        "Jobs and queues",
        (
            *("Job", "JobRecord", "JobState", "QueueSettings", "RateLimit", "Retention"),
            *("JsonCodec", "MsgpackCodec"),
        ),
    ),
    "errors": ("Errors", ("errors",)),
    "types": ("Types of answers and events", ("types",)),
    "testing": ("Testing", ("testing",)),
}
"""Each page of the API with its title and what it shows of the package `taskharbor`."""

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--ref", default="main", help="the branch or tag that links to code lead to")
    ref = parser.parse_args().ref
    shutil.rmtree(BUILD, ignore_errors=True)
    write_pages(ref)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=ROOT, check=False
    )
    if built.returncode == 0:
        write_texts()
        print(f"docs: {len(list(SITE.rglob('*.html')))} pages in build/docs/site")
    return built.returncode


def write_pages(ref: str) -> None:
    for source in sorted(DOCS.rglob("*")):
        name = page_name(source.relative_to(DOCS).as_posix())
        if name == "index.md":  # a list of pages, which the site has in its navigation
            continue
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(rewritten(source.read_text("utf-8"), source, name, ref), "utf-8")
        elif source.is_file():
            shutil.copyfile(source, target)
    for source_name, name in PROJECT.items():
        source = ROOT / source_name
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewritten(source.read_text("utf-8"), source, name, ref), "utf-8")
    for name, (title, names) in API.items():
        target = PAGES / "reference" / "python" / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        shown = "\n\n".join(f"::: taskharbor.{one}" for one in names)
        target.write_text(f"# {title}\n\n{shown}\n", "utf-8")


def page_name(name: str) -> str:
    """A folder's README is its first page."""
    return re.sub(r"(^|/)README\.md$", r"\1index.md", name)


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

    return _LINK.sub(linked, text).replace("docs/images/", "images/")


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

"""The drawings of the docs, made from the code: the states of a job, and the layers of the package.

    python tools/drawings.py         writes docs/images/*.svg, light and dark, and the table of moves

A state, a move or a layer that the code has and a drawing lacks is an error here, so none is forgotten.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from taskharbor.model.state import FAMILY_MOVES, MOVES, JobState

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
LIFECYCLE = ROOT / "docs" / "concepts" / "lifecycle.md"
BEGIN, END = "<!-- moves: written by tools/drawings.py -->\n", "<!-- end of moves -->\n"


class Colours(NamedTuple):
    """What a drawing is painted with."""

    ground: str
    line: str
    text: str
    quiet: str
    box: str
    accent: str


THEMES = {
    "light": Colours("#ffffff", "#64748b", "#0f172a", "#475569", "#f1f5f9", "#0f766e"),
    "dark": Colours("#0f172a", "#94a3b8", "#f1f5f9", "#cbd5e1", "#1e293b", "#5eead4"),
}

_S = JobState
REASONS: dict[tuple[JobState, JobState], str] = {
    (_S.SCHEDULED, _S.READY): "its time has come",
    (_S.SCHEDULED, _S.RUNNING): "a worker claims it the moment it is due",
    (_S.READY, _S.SCHEDULED): "another enqueue of its key gives it a later time",
    (_S.READY, _S.RUNNING): "a worker claims it",
    (_S.BLOCKED, _S.READY): "the job that it waits for has ended",
    (_S.BLOCKED, _S.SCHEDULED): "the same, and its own time is still ahead",
    (_S.RUNNING, _S.READY): "released, or its lease expired",
    (_S.RUNNING, _S.SCHEDULED): "the attempt failed and is retried, or snoozed",
    (_S.RUNNING, _S.COMPLETED): "the handler returned",
    (_S.RUNNING, _S.FAILED): "no attempts or stalls are left, or it is pointless to retry",
    (_S.RUNNING, _S.CANCELLED): "cancelled while it ran",
    **{(state, _S.CANCELLED): "cancelled" for state in (_S.SCHEDULED, _S.READY, _S.BLOCKED)},
    **{
        (state, _S.COMPLETED): "its second run won after its own lease expired"
        for state in (_S.SCHEDULED, _S.READY)
    },
    **{(state, _S.READY): "retried by hand" for state in (_S.COMPLETED, _S.FAILED, _S.CANCELLED)},
    **{
        (state, _S.SCHEDULED): "retried by hand, with a delay"
        for state in (_S.COMPLETED, _S.FAILED, _S.CANCELLED)
    },
    **{
        (state, _S.BLOCKED): "retried by hand while its key runs"
        for state in (_S.COMPLETED, _S.FAILED, _S.CANCELLED)
    },
}
"""Why a job moves, for every move of plain jobs."""

FAMILY_REASONS: dict[tuple[JobState, JobState], str] = {
    (_S.RUNNING, _S.BLOCKED): "it waits for other jobs, or for its children",
    (_S.BLOCKED, _S.COMPLETED): "the last of its children has ended",
    **{
        (state, _S.FAILED): "its deadline is over, or what it needs failed"
        for state in (_S.SCHEDULED, _S.READY, _S.BLOCKED)
    },
    **{(state, _S.BLOCKED): "it waits for other jobs again" for state in (_S.SCHEDULED, _S.READY)},
}
"""The same for what only jobs of a workflow do."""

PLACES: dict[JobState, tuple[int, int]] = {
    _S.SCHEDULED: (110, 170),
    _S.READY: (330, 170),
    _S.BLOCKED: (330, 290),
    _S.RUNNING: (560, 170),
    _S.COMPLETED: (800, 70),
    _S.FAILED: (800, 170),
    _S.CANCELLED: (800, 270),
}
WIDTH, HEIGHT = 110, 40


class Arrow(NamedTuple):
    """A line of the drawing of states: where it goes, what it says, and where that is written."""

    path: str
    label: str
    at: tuple[int, int]
    move: tuple[JobState, JobState] | None = None


ARROWS = (
    Arrow("M 50 112 L 84 146", "enqueue, later", (62, 104)),
    Arrow("M 330 90 L 330 146", "enqueue", (330, 80)),
    Arrow("M 225 330 L 290 314", "enqueue while its key runs", (140, 345)),
    Arrow("M 165 170 L 271 170", "due", (218, 160), (_S.SCHEDULED, _S.READY)),
    Arrow("M 385 160 L 501 160", "claim", (443, 150), (_S.READY, _S.RUNNING)),
    Arrow("M 501 182 L 391 182", "released, lease expired", (446, 206), (_S.RUNNING, _S.READY)),
    Arrow(
        "M 560 150 C 560 20 110 20 110 146", "failed, retried later", (335, 42), (_S.RUNNING, _S.SCHEDULED)
    ),
    Arrow("M 330 270 L 330 196", "the other job ended", (392, 240), (_S.BLOCKED, _S.READY)),
    Arrow("M 615 155 L 741 82", "success", (668, 102), (_S.RUNNING, _S.COMPLETED)),
    Arrow("M 615 170 L 741 170", "attempts used up", (680, 162), (_S.RUNNING, _S.FAILED)),
    Arrow("M 615 185 L 741 260", "cancel", (672, 242), (_S.RUNNING, _S.CANCELLED)),
)
NOTE = "completed, failed, cancelled: retry by hand makes the job wait again"


def main() -> int:
    for path, text in files().items():
        path.write_text(text, "utf-8")
    return 0


def files() -> dict[Path, str]:
    """Every file that is drawn, with its text."""
    drawn = {}
    for theme, colours in THEMES.items():
        drawn[IMAGES / f"states-{theme}.svg"] = states(colours)
        drawn[IMAGES / f"layers-{theme}.svg"] = layers(colours)
    page = LIFECYCLE.read_text("utf-8")
    head, rest = page.split(BEGIN)
    drawn[LIFECYCLE] = head + BEGIN + moves() + END + rest.split(END)[1]
    return drawn


# ------------------------------------------------------------------ states


def states(colours: Colours) -> str:
    check_moves()
    body = [_arrow(arrow, colours) for arrow in ARROWS if arrow.label]
    body += [_state(state, at, colours) for state, at in PLACES.items()]
    body.append(_text(NOTE, (450, 375), colours.quiet, 13))
    return _svg(900, 400, "The states of a job and the moves between them", body, colours)


def check_moves() -> None:
    """The tables above have every move of the code, and the drawing has no other."""
    if set(PLACES) != set(JobState):
        raise SystemExit(f"states without a place in the drawing: {set(JobState) ^ set(PLACES)}")
    for moves_of_code, reasons in ((MOVES, REASONS), (FAMILY_MOVES, FAMILY_REASONS)):
        there = {(before, after) for before, ends in moves_of_code.items() for after in ends}
        if there != set(reasons):
            raise SystemExit(f"moves without a reason, or the other way round: {there ^ set(reasons)}")
    unknown = {arrow.move for arrow in ARROWS if arrow.move} - set(REASONS)
    if unknown:
        raise SystemExit(f"arrows that are no move: {unknown}")


def moves() -> str:
    """The table of all moves, for the page."""
    check_moves()
    lines = ["", "| from | to | when |", "|---|---|---|"]
    for reasons, note in ((REASONS, ""), (FAMILY_REASONS, ", in a workflow")):
        lines += [
            f"| `{before}` | `{after}` | {reasons[before, after]}{note} |"
            for before in JobState
            for after in JobState
            if (before, after) in reasons
        ]
    return "\n".join([*lines, "", ""])


def _state(state: JobState, at: tuple[int, int], colours: Colours) -> str:
    x, y = at
    edge = colours.accent if state.is_terminal or state is _S.RUNNING else colours.line
    return (
        f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" rx="8" '
        f'fill="{colours.box}" stroke="{edge}" stroke-width="1.5"/>'
        + _text(state, (x, y + 5), colours.text, 15, weight=600)
    )


def _arrow(arrow: Arrow, colours: Colours) -> str:
    line = (
        f'<path d="{arrow.path}" fill="none" stroke="{colours.line}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )
    return line + _text(arrow.label, arrow.at, colours.quiet, 12)


# ------------------------------------------------------------------ layers


def layers(colours: Colours) -> str:
    rows = _layers()
    body = []
    for number, row in enumerate(rows):
        y = 46 + number * 46
        body.append(
            f'<rect x="24" y="{y}" width="752" height="38" rx="6" fill="{colours.box}" '
            f'stroke="{colours.line}"/>'
        )
        body.append(_text(" · ".join(row), (40, y + 24), colours.text, 14, weight=600, anchor="start"))
        if len(row) == 1:
            body.append(_text(_promise(row[0]), (190, y + 24), colours.quiet, 12, anchor="start"))
    body.append(_text("A layer imports the layers below it, and none above", (400, 30), colours.quiet, 13))
    return _svg(800, 66 + len(rows) * 46, "The layers of the package", body, colours)


def _layers() -> list[list[str]]:
    """The layers as import-linter checks them, the highest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = [one for one in project["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [[name.strip() for name in layer.split("|")] for layer in contract["layers"]]


def _promise(name: str) -> str:
    """The first sentence of a package's or module's docstring."""
    folder = ROOT / "src" / "taskharbor"
    path = folder / f"{name}.py" if (folder / f"{name}.py").exists() else folder / name / "__init__.py"
    docstring = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n\n")[0]
    sentence = " ".join(docstring.split()).split(". ")[0].rstrip(".").replace("`", "")
    return sentence if len(sentence) <= 92 else sentence[:90].rsplit(" ", 1)[0] + " …"


# ------------------------------------------------------------------ SVG


def _text(
    text: str, at: tuple[int, int], fill: str, size: int, *, weight: int = 400, anchor: str = "middle"
) -> str:
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{at[0]}" y="{at[1]}" fill="{fill}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{shown}</text>'
    )


def _svg(width: int, height: int, title: str, body: list[str], colours: Colours) -> str:
    return "\n".join(_lines(width, height, title, body, colours)) + "\n"


def _lines(width: int, height: int, title: str, body: list[str], colours: Colours) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="system-ui, sans-serif">'
    )
    yield f"<title>{title}</title>"
    yield (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{colours.line}"/></marker></defs>'
    )
    yield f'<rect width="{width}" height="{height}" rx="12" fill="{colours.ground}"/>'
    yield from body
    yield "</svg>"


if __name__ == "__main__":
    sys.exit(main())

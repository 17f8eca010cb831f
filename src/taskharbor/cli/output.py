"""Output: data on stdout in the chosen format, everything else on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from taskharbor.cli.exit_codes import UsageError
from taskharbor.cli.tables import Column, fitted_table, plain_table, write_csv
from taskharbor.cli.terminal import clean, is_fancy, one_line, safe_json, wants_color, without_passwords


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    IDS = "ids"


class Bar(Protocol):
    def advance(self, count: int) -> None: ...

    def show(self, label: str) -> None: ...


class Output:
    """The output of one command. `secrets` are URLs whose passwords must never be shown."""

    def __init__(self, form: Format = Format.TABLE, *, no_color: bool = False, verbosity: int = 0) -> None:
        self.form = form
        self.verbosity = verbosity
        self.secrets: list[str] = []
        self._no_color = no_color

    @property
    def is_machine_readable(self) -> bool:
        return self.form is not Format.TABLE

    @property
    def is_fancy(self) -> bool:
        return is_fancy(sys.stdout, no_color=self._no_color)

    @property
    def width(self) -> int | None:
        """The width of the terminal; None if the output goes to a pipe or a file."""
        is_terminal = self.is_fancy or sys.stdout.isatty()
        return shutil.get_terminal_size().columns if is_terminal else None

    # ------------------------------------------------------------------ data

    def items(
        self,
        items: Sequence[Mapping[str, Any] | msgspec.Struct],
        columns: Sequence[Column],
        *,
        cursor: str | None = None,
    ) -> None:
        """Print a list, in the same order in every format."""
        from taskharbor.views import plain

        rows = [plain(item) for item in items]
        match self.form:
            case Format.JSON:
                self._json({"items": rows, "next_cursor": cursor})
            case Format.JSONL:
                for item in rows:
                    self.line(_encoded(item))
            case Format.CSV:
                write_csv(sys.stdout, columns, rows)
            case Format.IDS:
                for item in rows:
                    self.line(one_line(str(item.get("id") or item.get("name"))))
            case Format.TABLE if self.width is not None:
                self._fitted(columns, rows)
            case Format.TABLE:
                for line in plain_table(columns, rows):
                    self.line(line)

    def document(self, data: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print one thing: as JSON, or as these lines."""
        match self.form:
            case Format.JSON:
                self._json(data)
            case Format.JSONL:
                self.line(_encoded(data))
            case Format.IDS:
                self.line(one_line(str(data.get("id") or data.get("name") or "")))
            case _:
                for line in lines:
                    self.line(clean(line))

    def _fitted(self, columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> None:
        from rich.text import Text

        console = self.console()
        if not items:
            self.say("(none)")  # a bare heading looks as if something were missing
            return
        for pieces in fitted_table(columns, items, self.width or 80):
            # Text, so that nothing in it is taken as markup; soft_wrap, so that rich cuts nothing.
            console.print(Text.assemble(*pieces), soft_wrap=True)

    def line(self, text: str) -> None:
        sys.stdout.write(text + "\n")

    def _json(self, data: Mapping[str, Any]) -> None:
        text = _encoded(data)
        self.line(safe_json(msgspec.json.format(text, indent=2)) if sys.stdout.isatty() else text)

    # ------------------------------------------------------------------ words

    def say(self, text: str) -> None:
        """A message on stderr, never part of the data."""
        sys.stderr.write(self.safe(text) + "\n")
        sys.stderr.flush()

    def detail(self, text: str) -> None:
        """Only with -v."""
        if self.verbosity:
            self.say(text)

    def error(self, error: BaseException) -> None:
        """Print an error as one message; the traceback only with -vv."""
        if self.verbosity >= 2:
            import traceback

            self.say("".join(traceback.format_exception(error)).rstrip())
        self.say(f"error: {str(error) or type(error).__name__}")

    def safe(self, text: str) -> str:
        return clean(without_passwords(text, *self.secrets))

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask before a change that cannot be undone. Raises UsageError without a terminal."""
        if yes:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(
                f"{question} Cannot ask without a terminal: add --yes, or --dry-run to see what would happen"
            )
        sys.stderr.write(f"{self.safe(question)} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Bar]:
        """A progress bar on stderr while the block runs, on a terminal only."""
        if not is_fancy(sys.stderr, no_color=self._no_color) or not sys.stderr.isatty():
            yield _NoBar()
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            yield _RichBar(progress, progress.add_task(label, total=total))

    def console(self) -> Any:
        """A rich console on stdout that respects NO_COLOR and --no-color."""
        from rich.console import Console

        return Console(
            file=sys.stdout,
            no_color=not wants_color(no_color=self._no_color),
            force_terminal=self.is_fancy or None,
            highlight=False,
        )


class _NoBar:
    def advance(self, count: int) -> None:
        return None

    def show(self, label: str) -> None:
        return None


class _RichBar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def show(self, label: str) -> None:
        self._progress.update(self._task, description=label)


def _encoded(data: object) -> str:
    return safe_json(msgspec.json.encode(data).decode())

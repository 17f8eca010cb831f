"""`manage.py taskharbor …`: TaskHarbor's command line on a back end of TASKS."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from taskharbor.integrations.django.backend import our_backends

_RELOADED = ("worker", "scheduler", "server")
_OF_DJANGO = ("--settings", "--pythonpath")
_APP = "taskharbor.integrations.django.app"


class Command(BaseCommand):  # type: ignore[misc]
    help = (
        "TaskHarbor's command line: worker, scheduler, server, doctor, jobs, dlq, queues … on a back end of "
        "TASKS. --backend ALIAS chooses it (default: the first one). With DEBUG, worker, scheduler and "
        "server restart when a file changes, unless --noreload is given."
    )
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """All words behind `taskharbor` are for its own command line, --help included."""
        from taskharbor.worker.forced_exit import exit_within

        try:
            code = self._run(argv[2:])
        except CommandError as error:
            red: Any = self.style
            self.stderr.write(red.ERROR(f"{error.__class__.__name__}: {error}"))
            code = error.returncode
        exit_within(code)  # threads of handlers do not keep the process
        sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")
        parser.add_argument("--backend")

    def handle(self, *words: Any, **options: Any) -> None:
        """For `call_command("taskharbor", "jobs", "list")`."""
        given = [str(word) for word in options.get("words") or words]
        if options.get("backend"):
            given += ["--backend", options["backend"]]
        if code := self._run([*given, "--noreload"]):
            raise CommandError(f"taskharbor ended with code {code}", returncode=code)

    def _run(self, words: list[str]) -> int:
        from taskharbor.cli.main import run

        words = _without(words, *_OF_DJANGO)[0]
        words, alias = _without(words, "--backend")
        reloads = settings.DEBUG and "--noreload" not in words and "--until-idle" not in words
        words = [word for word in words if word != "--noreload"]
        _choose(alias)
        command = next((word for word in words if not word.startswith("-")), "")
        if command in _RELOADED:
            self.check()
            if reloads and "--help" not in words:
                from taskharbor.cli.commands.dev import run_and_reload

                return run_and_reload([words], [Path.cwd()], self.stdout.write)
        return run(words)


def _choose(alias: str | None) -> None:
    """Name the app for this process and those it starts."""
    aliases = [backend.alias for backend in our_backends()]
    if not aliases:
        raise CommandError(
            'TASKS names no back end of TaskHarbor: "taskharbor.integrations.django.TaskHarborBackend"'
        )
    if alias is not None and alias not in aliases:
        raise CommandError(f"--backend {alias}: TASKS has no such back end; there is {', '.join(aliases)}")
    os.environ["TASKHARBOR_APP"] = f"{_APP}:{alias or aliases[0]}"
    os.environ.pop("TASKHARBOR_URL", None)  # the store is that of the back end


def _without(words: list[str], *flags: str) -> tuple[list[str], str | None]:
    """The words without these flags and their values, and the last value."""
    rest: list[str] = []
    value, takes = None, False
    for word in words:
        name, sign, text = word.partition("=")
        if takes:
            value, takes = word, False
        elif name in flags:
            value, takes = (text, False) if sign else (value, True)
        else:
            rest.append(word)
    return rest, value

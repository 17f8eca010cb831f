"""The command `taskharbor`: the list of commands, and the dispatch to one of them.

`--help` and `version` are answered here, without slow imports. For everything else only the module of the
called command is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn


class Entry(NamedTuple):
    """A command or a group: its module, its summary, and its subcommands if it has any."""

    module: str
    summary: str
    commands: tuple[str, ...] = ()
    default: str = ""
    """The subcommand to run if none is given."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of subcommands."""


SECTIONS: dict[str, dict[str, Entry]] = {
    "Run": {
        "demo": Entry("demo", "Watch sample jobs run, fail, retry and crash"),
        "dev": Entry("dev", "Run a worker that restarts when a file changes"),
        "worker": Entry("worker", "Run the jobs of an app"),
        "server": Entry("server", "Serve the HTTP API"),
        "scheduler": Entry("scheduler", "Fire schedules, recover lost jobs, delete old ones"),
    },
    "Jobs": {
        "enqueue": Entry("enqueue", "Enqueue a job, or many from a file"),
        "jobs": Entry(
            "jobs",
            "List, show, explain, wait for, retry and cancel jobs",
            ("list", "show", "why", "wait", "retry", "cancel"),
        ),
        "dlq": Entry(
            "dlq",
            "List, show, retry and purge dead letters (failed jobs)",
            ("list", "show", "retry", "purge"),
            aliases=(("replay", "retry"),),
        ),
        "workflows": Entry(
            "workflows",
            "List, show, wait for, cancel and retry workflows; send events",
            ("list", "show", "graph", "wait", "cancel", "retry", "send"),
        ),
    },
    "Operate": {
        "queues": Entry(
            "queues", "List, pause, resume and configure queues", ("list", "pause", "resume", "set")
        ),
        "workers": Entry("workers", "List live workers", ("list",)),
        "schedules": Entry(
            "schedules",
            "List, pause, run and delete recurring jobs",
            ("list", "pause", "resume", "run", "delete"),
        ),
        "tokens": Entry("tokens", "Manage access tokens of the server", ("create", "list", "revoke")),
        "top": Entry("top", "Watch queues, workers, throughput and failures"),
        "migrate": Entry("migrate", "Update the schema of the store", ("up", "status", "sql"), default="up"),
        "doctor": Entry("doctor", "Check the store and suggest fixes"),
        "health": Entry("health", "Ask whether a server or worker is alive"),
        "bench": Entry("bench", "Measure the speed of the store"),
        "config": Entry("config", "Show the settings and their sources", ("show",)),
        "version": Entry("version", "Print the version"),
    },
}
COMMANDS: dict[str, Entry] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

_TAKES_VALUE = {"--url", "--app", "-A", "--output", "-o"}
_COMPLETING = "_TASKHARBOR_COMPLETE"
_SETTINGS_FLAGS = {"--config": "TASKHARBOR_CONFIG", "--profile": "TASKHARBOR_PROFILE"}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line of this process, or the one given, and exit with its code."""
    code = run(sys.argv[1:] if argv is None else argv)
    if "taskharbor.worker.worker" in sys.modules:  # one may have run, and handlers leave threads behind
        from taskharbor.worker.forced_exit import exit_within

        exit_within(code)
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if _COMPLETING in os.environ:  # the shell asks, and hands the words over in variables
        words = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        return _call(_commands_to_complete(words.split()), [])
    args = _globals_behind_the_command(_without_settings_flags(list(argv)))
    first = args[0] if args else "--help"
    if first in ("--help", "-h"):
        sys.stdout.write(help_text())
        return 0
    if first in ("version", "--version") and set(args[1:]) <= {"--json"}:
        _print_version(as_json="--json" in args)
        return 0
    if args[0].startswith(("--install-completion", "--show-completion")):
        return _call(list(COMMANDS), args)
    if first not in COMMANDS:
        return _unknown(first)
    return _call([first], args)


def help_text() -> str:
    """What `taskharbor --help` prints."""
    lines = [
        "Usage: taskharbor COMMAND [ARGUMENTS]",
        "",
        "Background jobs on SQLite, Postgres, Redis or a TaskHarbor server.",
    ]
    for title, commands in SECTIONS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<10} {entry.summary}" for name, entry in commands.items()]
    lines += [
        "",
        "Most commands take --url URL or --app APP, --json, -o FORMAT, --no-color and -v.",
        "All take --config FILE and --profile NAME; see `taskharbor config show`.",
        "taskharbor COMMAND --help describes one of them.",
        "",
    ]
    return "\n".join(lines)


def _print_version(*, as_json: bool) -> None:
    import platform

    from taskharbor import __version__

    python = platform.python_version()
    if as_json:
        sys.stdout.write(f'{{"taskharbor":"{__version__}","python":"{python}"}}\n')
    else:
        sys.stdout.write(f"taskharbor {__version__}\n")


def _without_settings_flags(args: list[str]) -> list[str]:
    """--config FILE and --profile NAME, anywhere on the command line, become their variables."""
    ours = args[: args.index("--")] if "--" in args else args
    rest, at = [], 0
    while at < len(ours):
        name, sign, value = ours[at].partition("=")
        if name in _SETTINGS_FLAGS and (sign or at + 1 < len(ours)):
            os.environ[_SETTINGS_FLAGS[name]] = value if sign else ours[at + 1]
            at += 1 if sign else 2
        else:
            rest.append(ours[at])
            at += 1
    return rest + args[len(ours) :]


def _globals_behind_the_command(args: list[str]) -> list[str]:
    """`taskharbor --url U jobs list` means `taskharbor jobs list --url U`: both orders are common."""
    flags: list[str] = []
    while args and args[0].startswith("-") and args[0] not in ("--help", "-h", "--version", "--"):
        if args[0].startswith(("--install-completion", "--show-completion")):
            break
        taken = 2 if args[0] in _TAKES_VALUE else 1
        flags += args[:taken]
        args = args[taken:]
    entry = COMMANDS.get(args[0]) if args else None
    if entry and len(args) > 1:
        args = [args[0], dict(entry.aliases).get(args[1], args[1]), *args[2:]]
    depth = 2 if entry and len(args) > 1 and args[1] in entry.commands else 1
    named = args[:depth]
    if entry and entry.default and depth == 1 and (len(args) == 1 or args[1] not in ("-h", "--help")):
        named = [*named, entry.default]
    return named + flags + args[depth:] if args else flags or args


def _commands_to_complete(words: list[str]) -> list[str]:
    """For shell completion: the command being completed, or all of them."""
    return [words[1]] if len(words) > 2 and words[1] in COMMANDS else list(COMMANDS)


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    from taskharbor.cli.terminal import one_line

    close = get_close_matches(name, COMMANDS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else " Run `taskharbor --help` for a list."
    what = "option" if name.startswith("-") else "command"
    sys.stderr.write(f"error: there is no {what} {one_line(name)!r}.{hint}\n")
    return 2


def _call(names: list[str], args: list[str]) -> int:
    """Run typer with only these commands loaded."""
    from taskharbor.cli.config import file_settings, flag_defaults
    from taskharbor.cli.terminal import clean, without_passwords
    from taskharbor.errors import ConfigurationError

    try:
        settings = file_settings()
        defaults = {} if settings is None else {name: flag_defaults(settings, name) for name in names}
        build(names).main(args=args, prog_name="taskharbor", default_map=defaults)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {clean(without_passwords(str(error)))}\n")
        return 2
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def build(names: list[str]) -> Any:
    """The typer command line with these commands."""
    import importlib

    import typer

    # No rich in help and usage errors: plain text costs nothing to import and reads well in a pipe.
    root = typer.Typer(
        name="taskharbor",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_root)
    for name in names:
        module = importlib.import_module(f"taskharbor.cli.commands.{COMMANDS[name].module}")
        if COMMANDS[name].commands:
            root.add_typer(module.app, name=name, help=COMMANDS[name].summary)
        else:
            root.command(name)(module.command)
    command = typer.main.get_command(root)
    _name_variables(command, "TASKHARBOR")
    return command


def _name_variables(command: Any, prefix: str) -> None:
    """Give every flag its variable: TASKHARBOR_JOBS_LIST_LIMIT is `taskharbor jobs list --limit`.

    Common flags, like --url, name their variable where they are defined.
    """
    named = []
    for parameter in command.params:
        flags = [flag for flag in parameter.opts if flag.startswith("--")]
        if flags and parameter.name != "help":
            if parameter.envvar is None:
                parameter.envvar = f"{prefix}_{flags[0].strip('-').replace('-', '_').upper()}"
                named.append(f"{flags[0]} is {parameter.envvar}")
            _tidy(parameter)
    if named:
        command.epilog = f"Every option has an environment variable: {named[0]}."
    for name, inner in getattr(command, "commands", {}).items():
        inner.short_help = (
            (inner.help or "").partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
        )
        _name_variables(inner, f"{prefix}_{name.upper()}")


_METAVARS = {
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "str": "TEXT",
    "path": "PATH",
}


def _tidy(parameter: Any) -> None:
    """Tidy the help: no variable per option, durations as one types them, N for a number."""
    from datetime import timedelta

    from taskharbor.model.duration import shown

    parameter.show_envvar = parameter.name in ("url", "app")
    if parameter.count:
        parameter.show_default = False
    if isinstance(parameter.default, timedelta):
        parameter.default = shown(parameter.default)
    if parameter.metavar is None and not parameter.is_flag:
        parameter.metavar = _METAVARS.get(parameter.type.name)


def _root() -> None:
    """Background jobs on SQLite, Postgres, Redis or a TaskHarbor server."""

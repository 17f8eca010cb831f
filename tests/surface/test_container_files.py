"""Dockerfile and compose.yaml name commands, flags and files that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from taskharbor.cli.main import COMMANDS, build

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "taskharbor"}


def command_lines(service: dict[str, Any]) -> list[list[str]]:
    """Every call of taskharbor that a service makes, without the program's own name."""
    shell = " ".join(service.get("entrypoint", ()))
    found = [line.split() for line in re.findall(r"taskharbor (\w+ \w+ --[^|&]+)", shell)]
    found += [service["command"]] if "command" in service else []
    check = service.get("healthcheck", {}).get("test", [])
    return found + ([check[2:]] if check[1:2] == ["taskharbor"] else [])


def flags_of(words: list[str]) -> set[str]:
    leaf = build([words[0]]).commands[words[0]]
    leaf = leaf.commands[words[1]] if COMMANDS[words[0]].commands and words[1:] else leaf
    return {option for one in getattr(leaf, "params", ()) for option in one.opts}


@pytest.mark.parametrize("name", OURS)
def test_every_call_in_the_compose_file_exists(name: str) -> None:
    lines = command_lines(OURS[name])

    assert lines
    for words in lines:
        assert words[0] in COMMANDS
        assert {word for word in words if word.startswith("--")} <= flags_of(words)


@pytest.mark.parametrize("name", ["postgres", "server", "worker"])
def test_what_stays_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_a_server_for_others_asks_for_tokens() -> None:
    [words] = [words for words in command_lines(OURS["server"]) if words[0] == "server"]

    assert "--tokens" in words


def test_the_worker_has_time_to_finish() -> None:
    assert int(OURS["worker"]["stop_grace_period"].removesuffix("s")) > 30  # the usual --grace


def test_the_image_runs_as_nobody_special() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()

    assert "USER 10001" in lines
    assert 'ENTRYPOINT ["taskharbor"]' in lines


def test_the_image_leaves_out_what_it_does_not_need() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()

    assert {".git", ".venv", "tests"} <= set(ignored)
    assert not {"README.md", "LICENSE", "constraints.txt", "src", "pyproject.toml"} & set(ignored)

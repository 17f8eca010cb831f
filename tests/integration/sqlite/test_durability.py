"""What was answered is there after the death of the process that asked."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.sqlite.stores import is_sound

WORLD = Path(__file__).with_name("crash_world.py")
SEED = 20301


@pytest.mark.more("kills processes or servers and waits until others take over")
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_nothing_that_was_answered_is_lost_when_the_process_is_killed(tmp_path, durability):
    path = tmp_path / "jobs.db"
    command = [sys.executable, str(WORLD), f"sqlite:///{path}?durability={durability}", str(SEED), "25"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stderr
    deaths, enqueued, settled = map(int, done.stdout.split())
    assert deaths == 25
    assert enqueued > 25
    assert settled > 0
    assert is_sound(path)

"""Room for connections: the real limits of a real process, raised as far as they may be."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any

import pytest

from taskharbor.web.server import FILES_BESIDES

PROGRAM = """
import json, logging, resource, sys

from taskharbor.web.server import raise_file_limit

soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("taskharbor.server").addHandler(handler)
fits = raise_file_limit(connections)
print(json.dumps({"fits": fits, "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "logged": logged}))
"""


def asked_for(connections: int, *, soft: int, hard: int) -> Any:
    """What a process with these limits makes of the question."""
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip(f"this machine allows no {hard} open files")
    words = [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(connections)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(answer.stdout)


def test_the_soft_limit_is_raised_as_far_as_the_connections_need_it() -> None:
    answer = asked_for(500, soft=200, hard=1000)

    assert answer == {"fits": 500, "limits": [500 + FILES_BESIDES, 1000], "logged": []}


def test_a_limit_that_is_high_enough_stays_as_it_is() -> None:
    answer = asked_for(500, soft=500 + FILES_BESIDES, hard=1000)

    assert answer == {"fits": 500, "limits": [500 + FILES_BESIDES, 1000], "logged": []}


def test_a_hard_limit_that_is_too_low_is_logged_and_kept_to() -> None:
    answer = asked_for(500, soft=200, hard=400)

    assert (answer["fits"], answer["limits"]) == (400 - FILES_BESIDES, [400, 400])
    [logged] = answer["logged"]
    assert "may open 400 files, too few for 500 connections; accepting 272" in logged
    assert f"ulimit -n {500 + FILES_BESIDES}" in logged


def test_even_a_tiny_limit_leaves_raise_file_limit_some() -> None:
    answer = asked_for(500, soft=100, hard=100)

    assert answer["fits"] == 50
    assert len(answer["logged"]) == 1

"""`taskharbor worker --gpus`: what cannot work is refused before anything starts."""

import sys

import pytest

from tests.unit.cli.conftest import Shell


def test_devices_and_several_processes_are_refused_with_a_way_out(shell: Shell) -> None:
    answer = shell.bare(
        "worker",
        "--handle",
        "t=echo",
        "--url",
        shell.url,
        "--kind",
        "gpu",
        "--gpus",
        "0,1",
        "--processes",
        "2",
    )

    assert answer.code == 2
    assert "--gpus 0,1 and --gpus 2,3" in answer.err


def test_devices_without_a_lane_for_them_are_refused(shell: Shell) -> None:
    answer = shell.bare("worker", "--handle", "t=echo", "--url", shell.url, "--gpus", "0")

    assert answer.code == 2
    assert "--kind gpu" in answer.err


def test_all_devices_need_somebody_who_knows_them(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    answer = shell.bare("worker", "--handle", "t=echo", "--url", shell.url, "--kind", "gpu", "--gpus", "all")

    assert answer.code == 2
    assert "pip install 'taskharbor[gpu]'" in answer.err

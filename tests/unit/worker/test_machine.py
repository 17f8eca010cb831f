"""What a worker reports about its machine, its GPUs and its release."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskharbor.drivers.log_recorder import release_of
from taskharbor.errors import InvalidArgument
from taskharbor.model.presence import GpuUse, Machine, WorkerReport, check_report
from taskharbor.worker.gpus import Gpu
from taskharbor.worker.machine import gpus_now, machine_now

MEMINFO = """MemTotal:       65764260 kB
MemFree:         1000000 kB
MemAvailable:   22764260 kB
HugePages_Total:       0
"""


def test_memory_in_use_leaves_out_what_the_system_would_give_up(tmp_path: Path):
    (tmp_path / "meminfo").write_text(MEMINFO)

    machine = machine_now(0.002, memory=tmp_path / "meminfo")

    assert (machine.memory, machine.memory_used) == (65764260 * 1024, 43000000 * 1024)
    assert machine.store_s == 0.002
    assert machine.cores is None or machine.cores >= 1


@pytest.mark.parametrize("text", [None, "", "MemTotal: lots kB\n", "MemTotal: 5 kB\n"])
def test_a_system_that_does_not_show_its_memory_is_no_trouble(tmp_path: Path, text: str | None):
    if text is not None:
        (tmp_path / "meminfo").write_text(text)

    machine = machine_now(memory=tmp_path / "meminfo")

    assert (machine.memory, machine.memory_used, machine.store_s) == (None, None, None)


class NvmlError(Exception):
    pass


def nvml(*, is_there: bool = True, shows_heat: bool = True) -> SimpleNamespace:
    """The few functions that are asked, with two devices behind them."""

    def init() -> None:
        if not is_there:
            raise NvmlError("no driver")

    def heat(device: int, sensor: int) -> int:
        if not shows_heat:
            raise NvmlError("not supported")
        return 60 + device

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda device: f"GPU-{device}",
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=1000 + device, total=9000),
        nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=97),
        nvmlDeviceGetTemperature=heat,
    )


GPUS = (Gpu(id="1", name="H100", uuid="GPU-1", memory=9000), Gpu(id="0", uuid="GPU-0"))


def test_each_gpu_is_reported_with_its_use_and_its_job(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())

    first, second = gpus_now(GPUS, {"1": "job-1"})

    assert first == GpuUse(
        id="1", name="H100", memory=9000, memory_used=1001, use=0.97, celsius=61.0, job="job-1"
    )
    assert (second.id, second.memory_used, second.job) == ("0", 1000, None)


@pytest.mark.parametrize("module", [None, nvml(is_there=False)], ids=["not installed", "no driver"])
def test_without_a_driver_only_what_is_known_is_reported(monkeypatch: pytest.MonkeyPatch, module: Any):
    monkeypatch.setitem(sys.modules, "pynvml", module)

    assert gpus_now(GPUS, {})[0] == GpuUse(id="1", name="H100", memory=9000)
    assert gpus_now((), {}) == ()


def test_a_gpu_that_hides_its_heat_shows_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(shows_heat=False))

    assert [(gpu.use, gpu.celsius) for gpu in gpus_now(GPUS, {})] == [(0.97, None)] * 2


def test_a_release_is_a_label_or_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TASKHARBOR_RELEASE", raising=False)
    assert release_of(None) == release_of({"release": ""}) == ""

    monkeypatch.setenv("TASKHARBOR_RELEASE", "from-env")
    assert release_of({"zone": "a"}) == "from-env"
    assert release_of({"release": "4f2a9c1"}) == "4f2a9c1"
    assert release_of({"release": "x\ny" + "z" * 300}) == "xy" + "z" * 253


@pytest.mark.parametrize(
    "fields",
    [
        {"release": "x" * 256},
        {"release": "a\nb"},
        {"machine": Machine(cores=-1)},
        {"machine": Machine(load=float("nan"))},
        {"machine": Machine(memory=2**70)},
        {"gpus": (GpuUse(id="x" * 300),)},
        {"gpus": (GpuUse(id="0", name="a\nb"),)},
        {"gpus": (GpuUse(id="0", use=float("inf")),)},
        {"gpus": (GpuUse(id="0", job="no id"),)},
        {"gpus": tuple(GpuUse(id=str(number)) for number in range(65))},
    ],
    ids=str,
)
def test_a_report_that_cannot_be_is_refused(fields: dict[str, Any]):
    with pytest.raises(InvalidArgument):
        check_report(WorkerReport(worker_id="w", **fields))

"""What a worker's machine and GPUs are doing, as its reports say it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskharbor.model.presence import GpuUse, Machine
from taskharbor.worker.gpus import Gpu

_MEMORY = Path("/proc/meminfo")


def machine_now(store_s: float | None = None, *, memory: Path = _MEMORY) -> Machine:
    """Cores, load and memory; None for what this system does not show."""
    total, used = _memory(memory)
    return Machine(cores=_cores(), load=_load(), memory=total, memory_used=used, store_s=store_s)


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _load() -> float | None:
    with suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None


def _memory(path: Path) -> tuple[int | None, int | None]:
    """All and what is in use, in bytes: caches that the system would give up are not."""
    try:
        lines = (line.split() for line in path.read_text().splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
        return sizes["MemTotal:"], sizes["MemTotal:"] - sizes["MemAvailable:"]
    except (OSError, ValueError, KeyError):
        return None, None


def gpus_now(gpus: Sequence[Gpu], jobs: Mapping[str, str]) -> tuple[GpuUse, ...]:
    """The devices of a worker, with the job that has each; without a driver, only what is known of them."""
    seen = _use_by_uuid() if gpus else {}
    return tuple(
        GpuUse(
            id=gpu.id,
            name=gpu.name,
            memory=gpu.memory,
            job=jobs.get(gpu.id),
            **seen.get(gpu.uuid or "", {}),
        )
        for gpu in gpus
    )


def _use_by_uuid() -> dict[str, dict[str, Any]]:
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(number)
            uuid = pynvml.nvmlDeviceGetUUID(device)
            found[uuid.decode() if isinstance(uuid, bytes) else uuid] = _use(pynvml, device)
    except pynvml.NVMLError:
        pass
    finally:
        pynvml.nvmlShutdown()
    return found


def _use(nvml: object, device: object) -> dict[str, Any]:
    """Each by itself: a slice of a device, or an old one, does not show everything."""
    ask, found = vars(nvml), dict[str, Any]()
    with suppress(ask["NVMLError"]):
        found["memory_used"] = int(ask["nvmlDeviceGetMemoryInfo"](device).used)
    with suppress(ask["NVMLError"]):
        found["use"] = ask["nvmlDeviceGetUtilizationRates"](device).gpu / 100
    with suppress(ask["NVMLError"]):
        found["celsius"] = float(ask["nvmlDeviceGetTemperature"](device, ask["NVML_TEMPERATURE_GPU"]))
    return found

"""The GPUs of a worker: which there are, and which job has which. A job has one until it is settled.

A process handler sees no other device than its own: `CUDA_VISIBLE_DEVICES` is set before its process
imports anything. Handlers in the event loop and in threads share the worker's process, and have to ask
`ctx.gpu` themselves.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from taskharbor.errors import ConfigurationError
from taskharbor.model.worker_options import LANES_WITHOUT_GPU

if TYPE_CHECKING:
    from taskharbor.worker.leased_jobs import LeasedJob

_log = logging.getLogger("taskharbor.worker")

ALL = "all"
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

_ID = re.compile(r"\d{1,4}|(GPU|MIG)-[A-Za-z0-9./-]{1,80}")
_INSTALL = "pip install 'taskharbor[gpu]'"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One device. What nvidia-ml-py reports is None where it is not available.

    `id` is its number or UUID as CUDA_VISIBLE_DEVICES takes it. `ordinal` is its number in the process
    of the handler: `f"cuda:{ctx.gpu.ordinal}"`, always 0 in a process handler; None when it is not known.
    `memory` is in bytes.
    """

    id: str
    ordinal: int | None = None
    name: str | None = None
    uuid: str | None = None
    memory: int | None = None

    def __str__(self) -> str:
        facts = [self.name] if self.name else []
        facts += [f"{self.memory / 2**30:.0f} GiB"] if self.memory else []
        return f"{self.id} ({', '.join(facts)})" if facts else self.id


def find_gpus(
    wanted: str | Sequence[str | int] | None, env: Mapping[str, str] = os.environ
) -> tuple[Gpu, ...]:
    """The devices that `--gpus` names: `all`, or ids with commas; none for None.

    `all` keeps to CUDA_VISIBLE_DEVICES where that is set.

    Raises:
        ConfigurationError: no such device, or `all` and the devices cannot be listed.
    """
    if wanted is None:
        return ()
    ids = _ids(wanted)
    known, trouble = _ask_nvml()
    if ids is None:
        ids = _visible(env)
    if ids is None:
        if trouble:
            raise ConfigurationError(f"--gpus all: {trouble}; or name the devices, as in --gpus 0,1")
        ids = [gpu.id for gpu in known]
    if not ids:
        raise ConfigurationError("--gpus: there is no GPU here; leave it out, or run this worker elsewhere")
    if trouble:
        _log.warning("GPUs %s are used unseen: %s", ", ".join(ids), trouble)
        return tuple(Gpu(id=name, ordinal=_ordinal(name, None, env)) for name in ids)
    return tuple(_known(name, known, env) for name in ids)


def _ids(wanted: str | Sequence[str | int]) -> list[str] | None:
    """The given ids; None for all."""
    given = wanted.split(",") if isinstance(wanted, str) else [str(item) for item in wanted]
    ids = [item.strip() for item in given if item.strip()]
    if ids == [ALL]:
        return None
    for name in ids:
        if not _ID.fullmatch(name):
            raise ConfigurationError(
                f"--gpus: {name!r} is no device: use all, or numbers or UUIDs, as in 0,1"
            )
    if len(set(ids)) != len(ids) or not ids:
        raise ConfigurationError(f"--gpus={','.join(ids)!r} must name at least one device, and none twice")
    return ids


def _visible(env: Mapping[str, str]) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES allows; None if it is not set."""
    visible = env.get(VISIBLE)
    if visible is None:
        return None
    ids = [item.strip() for item in visible.split(",")]
    return list(takewhile(_ID.fullmatch, ids))  # as CUDA reads it: up to the first invalid one, such as -1


def _known(name: str, known: list[Gpu], env: Mapping[str, str]) -> Gpu:
    for gpu in known:
        if name == gpu.id or (gpu.uuid or "").startswith(name):
            return msgspec.structs.replace(gpu, id=name, ordinal=_ordinal(name, gpu.id, env))
    if name.startswith("MIG-"):
        return Gpu(id=name)  # a slice of a device: not among those that are listed
    there = ", ".join(map(str, known)) or "none"
    raise ConfigurationError(f"--gpus: there is no device {name}; this machine has {there}")


def _ordinal(name: str, number: str | None, env: Mapping[str, str]) -> int | None:
    """The number of a device in this process."""
    visible = _visible(env)
    if visible is not None:
        return next((at for at, item in enumerate(visible) if item in (name, number)), None)
    number = number or name
    return int(number) if number.isdigit() else None


def _ask_nvml() -> tuple[list[Gpu], str]:
    """The devices of this machine in the order of their slots, or why they cannot be listed."""
    try:
        import pynvml
    except ImportError:
        return [], f"listing GPUs needs nvidia-ml-py: {_INSTALL}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], f"nvidia-ml-py finds no NVIDIA driver here ({error})"
    try:
        return [_facts(pynvml, number) for number in range(pynvml.nvmlDeviceGetCount())], ""
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver does not answer ({error})"
    finally:
        pynvml.nvmlShutdown()


def _facts(nvml: object, number: int) -> Gpu:
    ask = vars(nvml)
    device = ask["nvmlDeviceGetHandleByIndex"](number)
    return Gpu(
        id=str(number),
        name=_text(ask["nvmlDeviceGetName"](device)),
        uuid=_text(ask["nvmlDeviceGetUUID"](device)),
        memory=int(ask["nvmlDeviceGetMemoryInfo"](device).total),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def environment_of(gpu: Gpu | None) -> dict[str, str]:
    """The environment of a handler process: it sees this device, or none at all."""
    # Numbers count by slot, as nvidia-smi and NVML do; CUDA itself would count by speed.
    return {VISIBLE: "" if gpu is None else gpu.id, ORDER: "PCI_BUS_ID"}


def gpu_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The labels of a worker with these devices."""
    return {"gpus": ", ".join(map(str, gpus))} if gpus else {}


class GpuPool:
    """The devices of one worker, handed out with its jobs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._free = list(gpus)

    def assign(self, leased: LeasedJob) -> None:
        """Give a device to a job whose lane needs one. One is free: there are no more slots than devices."""
        if leased.record.requires not in LANES_WITHOUT_GPU:
            leased.attempt.gpu = self._free.pop(0)

    def release(self, leased: LeasedJob) -> None:
        if leased.attempt.gpu is not None:
            self._free.append(leased.attempt.gpu)
            leased.attempt.gpu = None

"""The jobs of tools/try_gpu.py: what handlers do with a GPU, and to it.

With PyTorch where it is installed, else with the CUDA driver alone (`libcuda.so.1` through ctypes).
"""

from __future__ import annotations

import ctypes
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taskharbor import Harbor, JobContext

VISIBLE_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")
HAS_TORCH = find_spec("torch") is not None
GIB = 2**30
harbor = Harbor()

_KERNELS = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .entry breaks()
{
    trap;
}

.visible .entry spins(.param .u64 flag)
{
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
"""


class CudaError(Exception):
    """A call of the driver that failed."""


class Cuda:
    """As much of the CUDA driver as the jobs below need, on the first device that this process sees."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            name_of = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name_of))
            raise CudaError(f"{name}: {(name_of.value or b'error').decode()} ({code})")

    def allocated(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def launched(self, kernel: bytes, *arguments: ctypes.c_uint64) -> None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(_KERNELS))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(kernel))
        places = [ctypes.cast(ctypes.pointer(argument), ctypes.c_void_p) for argument in arguments]
        parameters = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)

    def at_rest(self) -> None:
        self.call("cuCtxSynchronize")


def devices_seen() -> int:
    """How many devices CUDA shows to this process."""
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0) != 0:
        return 0
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def computed(ordinal: int = 0) -> float:
    """512, worked out on the device: by a matrix product, or by a fill and a copy without PyTorch."""
    if HAS_TORCH:
        import torch

        ones = torch.ones(512, 512, device=torch.device(f"cuda:{ordinal}"))
        return float((ones @ ones)[0, 0].item())
    cuda, back = Cuda(), ctypes.c_uint32()
    place = cuda.allocated(4)
    cuda.call("cuMemsetD32_v2", place, 512, ctypes.c_size_t(1))
    cuda.call("cuMemcpyDtoH_v2", ctypes.byref(back), place, ctypes.c_size_t(4))
    cuda.call("cuMemFree_v2", place)
    return float(back.value)


def where_it_ran(ctx: JobContext) -> dict[str, Any]:
    gpu = ctx.gpu
    facts = None
    if gpu is not None:
        facts = {"id": gpu.id, "ordinal": gpu.ordinal, "name": gpu.name, "memory": gpu.memory}
    return {
        "pid": os.getpid(),
        "visible": VISIBLE_AT_IMPORT,
        "devices_seen": devices_seen(),
        "gpu": facts,
        "began": time.monotonic(),
    }


# ------------------------------------------------------------------ who sees what


@harbor.task(requires="gpu", run_in="process")
def in_process(ctx: JobContext) -> dict[str, Any]:
    result = {**where_it_ran(ctx), "product": computed()}
    time.sleep(0.2)
    return {**result, "ended": time.monotonic()}


@harbor.task(requires="gpu", run_in="thread")
def in_thread(ctx: JobContext) -> dict[str, Any]:
    ordinal = ctx.gpu.ordinal if ctx.gpu else 0
    return {**where_it_ran(ctx), "product": computed(ordinal or 0), "ended": time.monotonic()}


@harbor.task(run_in="process")
def without(ctx: JobContext) -> dict[str, Any]:
    return {**where_it_ran(ctx), "ended": time.monotonic()}


# ------------------------------------------------------------------ what goes wrong, and what comes after it


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def compute() -> dict[str, Any]:
    """The innocent one."""
    return {"pid": os.getpid(), "product": computed()}


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def assert_on_device() -> None:
    """An index out of range, seen by PyTorch's own assertion on the device."""
    import torch

    values = torch.zeros(4, device="cuda")
    values[torch.tensor([99], device="cuda")] += 1
    torch.cuda.synchronize()


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def trap_on_device() -> None:
    cuda = Cuda()
    cuda.launched(b"breaks")
    cuda.at_rest()


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def trap_and_return() -> int:
    """It never looks whether its kernel went well."""
    Cuda().launched(b"breaks")
    return os.getpid()


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def take_too_much() -> None:
    if HAS_TORCH:
        import torch

        free, total = torch.cuda.mem_get_info()
        torch.empty(total + GIB, dtype=torch.uint8, device="cuda")
    else:
        cuda, free, total = Cuda(), ctypes.c_size_t(), ctypes.c_size_t()
        cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        cuda.allocated(total.value + GIB)


@harbor.task(requires="gpu", run_in="process", max_attempts=1, timeout="3s")
def spin_for_ever() -> None:
    cuda = Cuda()
    flag = cuda.allocated(4)
    cuda.call("cuMemsetD32_v2", flag, 0, ctypes.c_size_t(1))
    cuda.launched(b"spins", flag)
    cuda.at_rest()


@harbor.task(requires="gpu", run_in="process", max_stalls=1)
def hold_memory(size: int, note: str) -> None:
    """Keeps memory of the device, says so in a file, and sleeps: its worker is killed meanwhile."""
    cuda = Cuda()
    place = cuda.allocated(size)
    cuda.call("cuMemsetD32_v2", place, 7, ctypes.c_size_t(size // 4))
    cuda.at_rest()
    Path(note + ".new").write_text(str(os.getpid()))
    Path(note + ".new").rename(note)
    time.sleep(600)


_models: list[Any] = []
_loads: list[float] = []


@harbor.task(requires="gpu", run_in="process", max_attempts=1)
def use_model() -> dict[str, Any]:
    """With a model that is loaded by the first job and kept by the process."""
    if not _models:
        _loads.append(time.monotonic())
        if HAS_TORCH:
            import torch

            _models.append(torch.nn.Linear(2048, 2048).to("cuda"))
        else:
            _models.append(Cuda().allocated(16 * 2**20))
    return {"pid": os.getpid(), "loads": len(_loads), "product": computed()}

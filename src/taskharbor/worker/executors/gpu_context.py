"""Whether this process can still use its GPU, asked of the CUDA driver itself.

An error on the device (an assertion, an address that is not its own) breaks the CUDA context of the process
for good: every later call fails, whatever job makes it. Only a new process helps.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

ANSWER_SECONDS = 5.0
"""How long the device may take to finish what a job left running there."""

_DRIVER = "libcuda.so.1"
_NOT_INITIALIZED = 3


def context_trouble(*, has_failed: bool) -> str:
    """Why no job can use the GPU in this process any more; empty when one can, or when none was used.

    Waits for what runs on the device. Work that does not end in time is a reason after a job that failed;
    after one that succeeded it is taken for work that was left there on purpose.
    """
    cuda = loaded_driver()
    if cuda is None:
        return ""
    current = ctypes.c_void_p()
    cuda.cuCtxGetCurrent(ctypes.byref(current))
    answers: list[str] = []
    asking = threading.Thread(
        target=lambda: answers.append(_trouble_of(cuda, current)), name="taskharbor-gpu-check", daemon=True
    )
    asking.start()
    asking.join(ANSWER_SECONDS)
    if answers:
        return answers[0]
    return f"its GPU did not come to rest within {ANSWER_SECONDS:g} s" if has_failed else ""


def loaded_driver() -> Any:
    """The CUDA driver, if something in this process uses it. Never loads it.

    The linker searches all its folders for a library that is not loaded, so it is asked again only after
    something was loaded: a job without a GPU pays 2 µs instead of 40.
    """
    loads = _count_of_loads()
    if loads is not None and loads == _absent_at.get(_DRIVER):
        return None
    try:
        return ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:
        _absent_at[_DRIVER] = loads
        return None


class _Library(ctypes.Structure):
    """`dl_phdr_info` of <link.h>."""

    _fields_ = (
        ("address", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
        ("unloads", ctypes.c_ulonglong),
    )


_absent_at: dict[str, int | None] = {}  # so many libraries had been loaded, and it was not among them
_seen: list[int] = []


def _note_first(library: Any, size: int, _: None) -> int:
    if size >= ctypes.sizeof(_Library):
        _seen.append(library.contents.loads)
    return 1  # each entry has the same counts


_each_library = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
_noting = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)(
    _note_first
)


def _count_of_loads() -> int | None:
    """How many libraries this process has ever loaded; None where the system does not count."""
    if _each_library is None:
        return None
    _seen.clear()
    _each_library(_noting, None)
    return _seen[0] if _seen else None


def _trouble_of(cuda: Any, current: ctypes.c_void_p) -> str:
    """Of the context that the handler's thread used, and of the one that most libraries share per device."""
    if current.value is not None:
        failed = cuda.cuCtxSetCurrent(current) or cuda.cuCtxSynchronize()
        if failed:
            return _in_words(cuda, failed)
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for ordinal in range(count.value):
        failed = _error_of_primary(cuda, ordinal)
        if failed not in (0, _NOT_INITIALIZED):
            return _in_words(cuda, failed)
    return ""


def _error_of_primary(cuda: Any, ordinal: int) -> int:
    device, flags, is_active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    failed: int = cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    failed = failed or cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
    if failed or not is_active.value:
        return failed
    context = ctypes.c_void_p()
    failed = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    if failed:
        return failed
    failed = cuda.cuCtxSetCurrent(context) or cuda.cuCtxSynchronize()
    cuda.cuDevicePrimaryCtxRelease_v2(device)  # the count goes back to what its owner made it
    return failed


def _in_words(cuda: Any, code: int) -> str:
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    return f"its GPU context is broken ({(name.value or b'error').decode()}, {code})"

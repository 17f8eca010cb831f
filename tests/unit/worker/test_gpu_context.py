"""Whether a process can still use its GPU: what the CUDA driver is asked, with a stand-in for the driver."""

# ruff: noqa: N802 - the names are those of libcuda
from __future__ import annotations

import _ctypes
import ctypes
import threading
from pathlib import Path
from typing import Any

import pytest

from taskharbor.worker.executors import gpu_context
from taskharbor.worker.executors.gpu_context import context_trouble

NOT_INITIALIZED, ASSERT, ILLEGAL_ADDRESS = 3, 710, 700
NAMES = {ASSERT: b"CUDA_ERROR_ASSERT", ILLEGAL_ADDRESS: b"CUDA_ERROR_ILLEGAL_ADDRESS"}


class Driver:
    """As much of libcuda as is asked. A context is its device's number plus one; `own` is none of them."""

    def __init__(
        self, devices: int = 1, own: int | None = None, broken: dict[int, int] | None = None
    ) -> None:
        self.is_initialized = True
        self.devices = devices
        self.own = own
        self.active = set(range(devices))
        self.broken = broken or {}
        self.rest = threading.Event()
        self.rest.set()
        self.retained = 0
        self._current = threading.local()

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.own
        return 0 if self.is_initialized else NOT_INITIALIZED

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        self._current.value = context.value
        return 0

    def cuCtxSynchronize(self) -> int:
        self.rest.wait()
        return self.broken.get(self._current.value, 0)

    def cuDeviceGetCount(self, count: Any) -> int:
        if not self.is_initialized:
            return NOT_INITIALIZED
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxGetState(self, device: ctypes.c_int, flags: Any, is_active: Any) -> int:
        is_active._obj.value = int(device.value in self.active)
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:
        assert device.value in self.active, "a context would be made"
        self.retained += 1
        context._obj.value = device.value + 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: ctypes.c_int) -> int:
        self.retained -= 1
        return 0

    def cuGetErrorName(self, code: int, name: Any) -> int:
        name._obj.value = NAMES[code]
        return 0


@pytest.fixture
def installed(monkeypatch):
    def install(driver: Driver) -> Driver:
        monkeypatch.setattr(gpu_context, "loaded_driver", lambda: driver)
        return driver

    return install


def test_a_process_without_the_driver_has_no_trouble():
    assert gpu_context.loaded_driver() is None
    assert context_trouble(has_failed=True) == ""


def test_a_driver_that_is_loaded_later_is_found(monkeypatch, tmp_path):
    library = tmp_path / "libfake.so"
    library.write_bytes(Path(_ctypes.__file__).read_bytes())
    monkeypatch.setattr(gpu_context, "_DRIVER", str(library))
    before = gpu_context.loaded_driver(), gpu_context.loaded_driver()

    ctypes.CDLL(str(library))

    assert before == (None, None)
    assert gpu_context.loaded_driver() is not None


def test_a_driver_that_nobody_has_started_is_no_trouble(installed):
    installed(Driver()).is_initialized = False

    assert context_trouble(has_failed=True) == ""


def test_contexts_that_answer_are_no_trouble_and_are_left_as_they_were(installed):
    driver = installed(Driver(devices=2, own=77))

    assert context_trouble(has_failed=True) == ""
    assert driver.retained == 0


def test_a_context_of_the_handlers_own_is_asked(installed):
    installed(Driver(own=77, broken={77: ASSERT}))

    assert context_trouble(has_failed=True) == "its GPU context is broken (CUDA_ERROR_ASSERT, 710)"


def test_the_context_that_libraries_share_is_asked_on_every_device(installed):
    driver = installed(Driver(devices=3, broken={3: ILLEGAL_ADDRESS}))

    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in context_trouble(has_failed=False)
    assert driver.retained == 0


def test_a_device_that_nobody_uses_is_not_woken(installed):
    installed(Driver(devices=2)).active = {1}

    assert context_trouble(has_failed=True) == ""


@pytest.mark.parametrize(("has_failed", "message"), [(True, "did not come to rest"), (False, "")])
def test_work_that_does_not_end_is_trouble_after_a_failure_only(installed, monkeypatch, has_failed, message):
    monkeypatch.setattr(gpu_context, "ANSWER_SECONDS", 0.01)
    driver = installed(Driver())
    driver.rest.clear()

    trouble = context_trouble(has_failed=has_failed)

    driver.rest.set()
    assert message in trouble
    assert bool(trouble) is bool(message)

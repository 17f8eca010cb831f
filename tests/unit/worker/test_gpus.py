"""Which devices a worker has, and which job has which: with a stand-in for the NVIDIA library."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest

from taskharbor.drivers import connect
from taskharbor.errors import ConfigurationError
from taskharbor.model.state import JobState
from taskharbor.worker import Worker
from taskharbor.worker.gpus import Gpu, environment_of, find_gpus

GIB = 2**30


class NVMLError(Exception):
    pass


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two devices, as nvidia-ml-py reports it."""
    names = [("NVIDIA H200", "GPU-aaaa-1"), (b"NVIDIA L4", b"GPU-bbbb-2")]
    library = ModuleType("pynvml")
    library.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda device: names[device][0],
        nvmlDeviceGetUUID=lambda device: names[device][1],
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=(device + 1) * 24 * GIB),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


@pytest.fixture
def no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.fixture
def no_driver(two_gpus):
    def init():
        raise NVMLError("Driver Not Loaded")

    two_gpus.nvmlInit = init


# ------------------------------------------------------------------ which there are


def test_all_is_every_device_with_its_facts(two_gpus):
    first, second = find_gpus("all", {})

    assert first == Gpu(id="0", ordinal=0, name="NVIDIA H200", uuid="GPU-aaaa-1", memory=24 * GIB)
    assert second == Gpu(id="1", ordinal=1, name="NVIDIA L4", uuid="GPU-bbbb-2", memory=48 * GIB)
    assert str(first) == "0 (NVIDIA H200, 24 GiB)"


def test_all_keeps_to_what_the_environment_allows(two_gpus):
    [only] = find_gpus("all", {"CUDA_VISIBLE_DEVICES": "1,-1,0"})

    assert (only.id, only.ordinal, only.name) == ("1", 0, "NVIDIA L4")


@pytest.mark.parametrize("wanted", ["1,0", ["1", "0"], (1, 0), " 1 , 0 "])
def test_devices_come_in_the_order_that_was_given(two_gpus, wanted):
    assert [gpu.id for gpu in find_gpus(wanted, {})] == ["1", "0"]


def test_a_device_can_be_named_by_its_uuid(two_gpus):
    [gpu] = find_gpus("GPU-bbbb-2", {})

    assert (gpu.id, gpu.ordinal, gpu.memory) == ("GPU-bbbb-2", 1, 48 * GIB)


def test_a_device_that_is_not_there_is_refused_with_those_that_are(two_gpus):
    with pytest.raises(
        ConfigurationError, match=r"no device 7; this machine has 0 \(NVIDIA H200, 24 GiB\), 1"
    ):
        find_gpus("0,7", {})


@pytest.mark.parametrize("wanted", ["", "0,0", "first", "0;1", [], "all,0", "-1"])
def test_what_names_no_device_is_refused(two_gpus, wanted):
    with pytest.raises(ConfigurationError, match="--gpus"):
        find_gpus(wanted, {})


def test_all_without_the_library_names_the_line_that_installs_it(no_library):
    with pytest.raises(ConfigurationError, match=r"pip install 'taskharbor\[gpu\]'; or name the devices"):
        find_gpus("all", {})


def test_all_without_a_driver_says_so(no_driver):
    with pytest.raises(ConfigurationError, match=r"finds no NVIDIA driver here \(Driver Not Loaded\)"):
        find_gpus("all", {})


def test_all_on_a_machine_without_devices_says_so(two_gpus):
    two_gpus.nvmlDeviceGetCount = lambda: 0

    with pytest.raises(ConfigurationError, match="there is no GPU here"):
        find_gpus("all", {})


@pytest.mark.parametrize("missing", ["no_library", "no_driver"])
def test_named_devices_are_used_unseen_and_that_is_logged(missing, request, caplog):
    request.getfixturevalue(missing)

    assert find_gpus("0,GPU-x", {}) == (Gpu(id="0", ordinal=0), Gpu(id="GPU-x"))
    assert "GPUs 0, GPU-x are used unseen" in caplog.text


def test_without_a_wish_nobody_is_asked(no_library, caplog):
    assert find_gpus(None) == ()
    assert caplog.text == ""


def test_a_process_sees_its_device_or_none(two_gpus):
    assert environment_of(Gpu(id="1"))["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment_of(None)["CUDA_VISIBLE_DEVICES"] == ""


# ------------------------------------------------------------------ settings of a worker


def test_slots_are_bounded_by_devices(two_gpus):
    assert Worker(connect("memory://"), kind="gpu", gpus="all").options.concurrency == 2
    assert Worker(connect("memory://"), kind="gpu", gpus="0,1", concurrency=1).options.concurrency == 1


def test_devices_without_a_lane_that_needs_them_are_refused(two_gpus):
    with pytest.raises(ConfigurationError, match="--kind gpu"):
        Worker(connect("memory://"), gpus="all")


def test_devices_and_prefetch_are_refused(two_gpus):
    with pytest.raises(ConfigurationError, match="no prefetch"):
        Worker(connect("memory://"), kind="gpu", gpus="all", prefetch=1)


# ------------------------------------------------------------------ who has which


async def test_every_gpu_job_has_a_device_of_its_own_until_it_is_settled(harness, two_gpus):
    in_use: set[str] = set()
    seen: list[str] = []

    async def train(ctx, job):
        assert ctx.gpu.id not in in_use
        in_use.add(ctx.gpu.id)
        seen.append(ctx.gpu.id)
        await harness.clock.sleep(1)
        in_use.discard(ctx.gpu.id)

    ids = await harness.put_many(6, "train", requires="gpu")
    await harness.run_until_idle(harness.worker({"train": train}, kind="gpu", gpus="all"))

    assert [(await harness.job(job_id)).state for job_id in ids] == [JobState.COMPLETED] * 6
    assert sorted(seen) == ["0"] * 3 + ["1"] * 3


async def test_a_job_of_no_gpu_lane_gets_no_device(harness, two_gpus):
    seen = []

    async def plain(ctx, job):
        seen.append(ctx.gpu)

    await harness.put("plain", requires="any")
    await harness.run_until_idle(harness.worker({"plain": plain}, kind="gpu", gpus="all"))

    assert seen == [None]


async def test_devices_come_back_from_failed_cancelled_stuck_and_released_jobs(harness, two_gpus):
    async def fail(ctx, job):
        raise ValueError("no")

    async def stuck(ctx, job):
        while True:
            try:
                await harness.clock.sleep(3600)
            except asyncio.CancelledError:
                await harness.clock.sleep(3600)

    async def good(ctx, job):
        return ctx.gpu.id

    worker = harness.worker({"fail": fail, "stuck": stuck, "good": good}, kind="gpu", gpus="all")
    for _ in range(3):
        await harness.put("fail", requires="gpu", max_attempts=1, priority=9)
        await harness.put("stuck", requires="gpu", timeout=timedelta(seconds=1), max_attempts=1, priority=9)
    good_ids = [await harness.put("good", requires="gpu") for _ in range(4)]
    async with harness.at_work(worker):
        cancelled = await harness.put("stuck", requires="gpu", priority=10)
        await harness.pass_time(0.5)
        await harness.driver.cancel([cancelled], now=harness.clock.now())
        await harness.pass_time(60)

    states = [(await harness.job(job_id)).state for job_id in good_ids]
    assert states == [JobState.COMPLETED] * 4
    assert (await harness.job(cancelled)).state is JobState.CANCELLED


async def test_a_worker_reports_its_devices(harness, two_gpus):
    async with harness.at_work(harness.worker({}, unknown_types="fail", kind="gpu", gpus="all")):
        await harness.pass_time(1)
        [worker] = await harness.driver.workers(now=harness.clock.now())

    assert worker.report.labels == {"gpus": "0 (NVIDIA H200, 24 GiB), 1 (NVIDIA L4, 48 GiB)"}
    assert worker.report.concurrency == 2

"""Try a gpu worker on a machine that has a GPU. CI has none, so this is run by hand.

    python tools/try_gpu.py

Needs what taskharbor needs, and nvidia-ml-py; uses PyTorch when it is there, else the driver alone. On a
machine without a package index, bring the packages along:

    pip install --target build/gpu-site msgspec cronsim typer rich nvidia-ml-py
    PYTHONPATH=src:build/gpu-site python tools/try_gpu.py

It starts `taskharbor worker --kind gpu --gpus all` on a store of its own, and says what its jobs saw.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from taskharbor import Harbor, JobContext

VISIBLE_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")
HERE = Path(__file__).parent
harbor = Harbor()


def devices_seen() -> int:
    """How many devices CUDA shows to this process."""
    cuda = ctypes.CDLL("libcuda.so.1")
    if cuda.cuInit(0) != 0:
        return 0
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def told(ctx: JobContext) -> dict[str, Any]:
    gpu = ctx.gpu
    return {
        "pid": os.getpid(),
        "visible": VISIBLE_AT_IMPORT,
        "devices_seen": devices_seen(),
        "gpu": None
        if gpu is None
        else {"id": gpu.id, "ordinal": gpu.ordinal, "name": gpu.name, "memory": gpu.memory},
        "began": time.monotonic(),
    }


def multiplied(ctx: JobContext) -> float | None:
    """A matrix product on the job's device; None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    device = torch.device(f"cuda:{ctx.gpu.ordinal if ctx.gpu else 0}")
    ones = torch.ones(512, 512, device=device)
    return float((ones @ ones)[0, 0].item())


@harbor.task(requires="gpu", run_in="process")
def in_process(ctx: JobContext) -> dict[str, Any]:
    said = told(ctx)
    said["product"] = multiplied(ctx)
    time.sleep(0.2)
    return {**said, "ended": time.monotonic()}


@harbor.task(requires="gpu", run_in="thread")
def in_thread(ctx: JobContext) -> dict[str, Any]:
    return {**told(ctx), "product": multiplied(ctx), "ended": time.monotonic()}


@harbor.task(run_in="process")
def without(ctx: JobContext) -> dict[str, Any]:
    return {**told(ctx), "ended": time.monotonic()}


def worker(url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taskharbor", "worker", "try_gpu:harbor", "--burst", *flags]
    paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "TASKHARBOR_URL": url, "PYTHONPATH": paths}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/jobs.db"
        os.environ["TASKHARBOR_URL"] = url
        sys.path.insert(0, str(HERE))
        import try_gpu  # under its own name: `__main__` cannot be found by a worker

        jobs = [try_gpu.in_process.enqueue() for _ in range(6)]
        jobs += [try_gpu.in_thread.enqueue(), try_gpu.without.enqueue()]
        ran = worker(url, "--kind", "gpu", "--gpus", "all")
        print(ran.stderr[-2000:])
        results = [job.result(timeout=5) for job in jobs]
        wrong = worker(url, "--kind", "gpu", "--gpus", "99")
        report(results, wrong)
        return verdict(results, wrong)


def report(results: list[dict[str, Any]], wrong: subprocess.CompletedProcess[str]) -> None:
    for result in results:
        print(json.dumps(result))
    print("--gpus 99:", wrong.returncode, wrong.stderr.strip()[-300:])


def verdict(results: list[dict[str, Any]], wrong: subprocess.CompletedProcess[str]) -> int:
    *processes, thread, plain = results
    alone = all(
        one["gpu"]["id"] != other["gpu"]["id"]
        or one["ended"] <= other["began"]
        or other["ended"] <= one["began"]
        for one in processes
        for other in processes
        if one is not other
    )
    checks = {
        "a process handler sees one device, its own": all(
            one["devices_seen"] == 1 and one["visible"] == one["gpu"]["id"] for one in processes
        ),
        "it is number 0 there": all(one["gpu"]["ordinal"] == 0 for one in processes),
        "facts are known": all(one["gpu"]["name"] and one["gpu"]["memory"] > 2**30 for one in processes),
        "no device had two jobs at once": alone,
        "its product is right": all(one["product"] in (None, 512.0) for one in [*processes, thread]),
        "PyTorch took part": processes[0]["product"] is not None,
        "a thread handler is told its device": thread["gpu"]["ordinal"] is not None,
        "a job without a device sees none": plain["devices_seen"] == 0 and plain["gpu"] is None,
        "a device that is not there is refused": wrong.returncode == 2 and "no device 99" in wrong.stderr,
    }
    for what, holds in checks.items():
        print("ok  " if holds else "FAIL", what)
    return 0 if all(holds for what, holds in checks.items() if what != "PyTorch took part") else 1


if __name__ == "__main__":
    sys.exit(main())

"""Try GPU workers on a machine that has a GPU. CI has none, so this is run by hand.

    python tools/try_gpu.py            # all of it, about two minutes
    python tools/try_gpu.py broken     # only those whose name has this in it

It starts `taskharbor worker --kind gpu` on a store of its own again and again, gives it jobs that use the
device, break it, fill it, keep it busy and hold it, and prints a table of what was seen. It exits with 1 when
something in the table does not hold, and with 2 when there is no GPU to try.

Needs an NVIDIA driver (libcuda.so.1), Python 3.11 or newer, what taskharbor needs, and nvidia-ml-py. Uses
PyTorch when it is installed and the driver alone when it is not; compiles nothing. On a machine without a
package index, bring the packages along, made for the Python of that machine:

    pip install --target build/gpu-site -c constraints.txt msgspec cronsim typer rich nvidia-ml-py
    PYTHONPATH=src:build/gpu-site python tools/try_gpu.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GIB = 2**30
FREED_SECONDS = 10.0
"""How long the device may stay taken after its worker was killed: seconds, as promised."""
SLOW_SECONDS = 240.0
"""How long anything may take before it counts as hanging; the first import of PyTorch takes its time."""


class Trial:
    """One thing to try: jobs in a queue of its own, workers on it, and what was seen."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.rows: list[tuple[str, bool, str]] = []
        self.log = ""

    def put(self, task: Any, count: int = 1, **arguments: Any) -> list[Any]:
        on_queue = task.using(queue=self.name)
        return [on_queue.enqueue(**arguments) for _ in range(count)]

    def start(self, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "taskharbor", "worker", "gpu_jobs:harbor", "--queues", self.name]
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": paths}
        return subprocess.Popen(
            [*command, *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def work(self, *flags: str) -> int:
        """Run a worker until its queue is empty. By default it has the first device, so one slot."""
        process = self.start("--burst", *(flags or ("--kind", "gpu", "--gpus", "0")))
        try:
            output, _ = process.communicate(timeout=SLOW_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            self.see("the worker ends", False, f"it still ran after {SLOW_SECONDS:g} s")
        self.log += output
        return process.returncode

    def see(self, what: str, holds: bool, seen: object = "") -> None:
        self.rows.append((what, holds, str(seen)))


def record_of(job: Any) -> Any:
    return job.refresh().record


def results_of(jobs: list[Any]) -> list[Any]:
    return [job.result(timeout=5) for job in jobs]


# ------------------------------------------------------------------ what is tried


def devices(trial: Trial, tasks: Any) -> None:
    jobs = [*trial.put(tasks.in_process, 6), *trial.put(tasks.in_thread), *trial.put(tasks.without)]
    trial.work("--kind", "gpu", "--gpus", "all")
    *processes, thread, plain = results_of(jobs)
    alone = all(
        one["gpu"]["id"] != other["gpu"]["id"]
        or one["ended"] <= other["began"]
        or other["ended"] <= one["began"]
        for one in processes
        for other in processes
        if one is not other
    )
    trial.see(
        "a process handler sees one device, its own",
        all(one["devices_seen"] == 1 and one["visible"] == one["gpu"]["id"] for one in processes),
    )
    trial.see("it is number 0 there", all(one["gpu"]["ordinal"] == 0 for one in processes))
    facts = processes[0]["gpu"]
    trial.see("its facts are known", bool(facts["name"]) and facts["memory"] > GIB, facts["name"])
    trial.see("no device had two jobs at once", alone, f"{len({one['gpu']['id'] for one in processes})} used")
    trial.see("products are right", all(one["product"] == 512.0 for one in [*processes, thread]))
    trial.see("a thread handler gets its device", thread["gpu"]["ordinal"] is not None)
    trial.see("a job without a device sees none", plain["devices_seen"] == 0 and plain["gpu"] is None)
    code = trial.work("--kind", "gpu", "--gpus", "99")
    trial.see(
        "a device that is not there is refused", code == 2 and "no device 99" in trial.log, f"exit {code}"
    )


def broken_context(trial: Trial, tasks: Any) -> None:
    _broken(trial, tasks.compute, tasks.trap_on_device)


def broken_by_pytorch(trial: Trial, tasks: Any) -> None:
    if tasks.HAS_TORCH:
        _broken(trial, tasks.compute, tasks.assert_on_device)
    else:
        trial.see("skipped: PyTorch is not installed", True)


def _broken(trial: Trial, innocent: Any, guilty: Any) -> None:
    before, [bad], after = trial.put(innocent), trial.put(guilty), trial.put(innocent, 3)
    trial.work()
    record = record_of(bad)
    trial.see("the job that breaks the device fails", record.state == "failed", record.last_error)
    trial.see(
        "its record says that its process is replaced", "process is replaced" in (record.last_error or "")
    )
    trial.see(
        "so does the log", "its GPU context is broken" in trial.log, _line(trial.log, "context is broken")
    )
    [first], later = results_of(before), results_of(after)
    pids = [one["pid"] for one in later]
    trial.see("the three after it succeed at once", all(one["product"] == 512.0 for one in later))
    trial.see("in a fresh process, one for all", first["pid"] not in pids and len(set(pids)) == 1, pids)


def broken_unnoticed(trial: Trial, tasks: Any) -> None:
    [bad], after = trial.put(tasks.trap_and_return), trial.put(tasks.compute, 2)
    trial.work()
    pid = bad.result(timeout=5)
    pids = [one["pid"] for one in results_of(after)]
    trial.see("a job that returns with a broken device takes none along", pid not in pids, [pid, *pids])
    trial.see(
        "the log shows", "its GPU context is broken" in trial.log, _line(trial.log, "context is broken")
    )


def out_of_memory(trial: Trial, tasks: Any) -> None:
    before, [bad], after = (
        trial.put(tasks.compute),
        trial.put(tasks.take_too_much),
        trial.put(tasks.compute, 2),
    )
    trial.work()
    record = record_of(bad)
    trial.see("a job that wants too much memory fails", record.state == "failed", record.last_error)
    pids = [one["pid"] for one in results_of([*before, *after])]
    trial.see("its process is usable and stays", len(set(pids)) == 1, pids)


def past_its_time(trial: Trial, tasks: Any) -> None:
    [bad], after = trial.put(tasks.spin_for_ever), trial.put(tasks.compute)
    trial.work()
    record = record_of(bad)
    took = (record.finished_at - record.started_at).total_seconds()
    trial.see(
        "a kernel past its time limit is a timeout", record.failure_kind == "timeout", record.last_error
    )
    trial.see("ended soon after its 3 s", took < 60, f"{took:.1f} s with the start of its process")
    trial.see("the next job runs", results_of(after)[0]["product"] == 512.0)


def warm_model(trial: Trial, tasks: Any) -> None:
    jobs = trial.put(tasks.use_model, 12)
    trial.work()
    results = results_of(jobs)
    loads, pids = {one["loads"] for one in results}, {one["pid"] for one in results}
    trial.see(
        "a model is loaded once for 12 jobs", loads == {1} and len(pids) == 1, f"loads {loads}, pids {pids}"
    )


def killed_worker(trial: Trial, tasks: Any) -> None:
    note = trial.folder / "holding"
    before = used_memory()
    trial.put(tasks.hold_memory, size=4 * GIB, note=str(note))
    worker = trial.start("--kind", "gpu", "--gpus", "0")
    try:
        _wait(note.exists, SLOW_SECONDS)
        handler, held = int(note.read_text()), used_memory()
        trial.see(
            "a job holds 4 GiB of the device", held - before >= 4 * GIB, f"{(held - before) / GIB:.1f} GiB"
        )
    finally:
        worker.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        output, _ = worker.communicate()
        trial.log += output
    freed = _wait(lambda: used_memory() <= held - 4 * GIB, SLOW_SECONDS)
    seconds = time.monotonic() - killed
    trial.see(
        "kill -9 of the worker frees it within seconds", freed and seconds < FREED_SECONDS, f"{seconds:.1f} s"
    )
    trial.see("the handler's process is gone", not _runs(handler))


TRIALS: list[Callable[[Trial, Any], None]] = [
    devices,
    broken_context,
    broken_by_pytorch,
    broken_unnoticed,
    out_of_memory,
    past_its_time,
    warm_model,
    killed_worker,
]


# ------------------------------------------------------------------ how it is seen


def used_memory() -> int:
    """Bytes that are taken on the first device, as the driver reports it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


def _wait(is_so: Callable[[], bool], seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _line(log: str, words: str) -> str:
    return next((line for line in log.splitlines() if words in line), "")


def tried(run: Callable[[Trial, Any], None], folder: Path, tasks: Any) -> Trial:
    trial = Trial(run.__name__.replace("_", "-"), folder)
    began = time.monotonic()
    try:
        run(trial, tasks)
    except Exception as error:  # noqa: BLE001 - shown as a row; the other trials go on
        trial.see("it can be tried", False, f"{type(error).__name__}: {error}")
        trial.log += traceback.format_exc()
    print(f"{trial.name}: {time.monotonic() - began:.0f} s", flush=True)
    if not all(holds for _, holds, _ in trial.rows):
        print(f"--- the end of its log\n{trial.log[-6000:]}\n---", flush=True)
    return trial


def table(trials: list[Trial]) -> str:
    lines = []
    for trial in trials:
        lines.append(f"\n{trial.name}")
        for what, holds, seen in trial.rows:
            text = " ".join(seen.split())
            lines.append(f"  {'ok  ' if holds else 'FAIL'}  {what:<55}  {text[:160]}".rstrip())
    return "\n".join(lines)


def main() -> int:
    wanted = sys.argv[1:]
    try:
        print(f"the first device has {used_memory() / GIB:.1f} GiB in use")
    except Exception as error:  # noqa: BLE001 - whatever it is, there is nothing to try
        print(f"no GPU can be tried here: {type(error).__name__}: {error}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TASKHARBOR_URL"] = f"sqlite:///{folder}/jobs.db"
        sys.path.insert(0, str(HERE))
        import gpu_jobs

        print(
            f"PyTorch {'takes part' if gpu_jobs.HAS_TORCH else 'is not installed: the driver alone is used'}"
        )
        chosen = [run for run in TRIALS if not wanted or any(name in run.__name__ for name in wanted)]
        trials = [tried(run, Path(folder), gpu_jobs) for run in chosen]
        gpu_jobs.harbor.close()
    print(table(trials))
    failed = sum(not holds for trial in trials for _, holds, _ in trial.rows)
    print(f"\n{sum(len(trial.rows) for trial in trials)} seen, {failed} failed")
    return 1 if failed or not trials else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the workflow adapters of other queues share: lines of handlers, and a producer that reads commands.

python flow_X.py worker     runs a worker until it is killed
python flow_X.py produce    reads commands such as `group RUN CHILDREN`, answers `ok SECONDS`

The commands are `group`, `chain`, `graph` (so many graphs of 10 nodes, a callback as the last of each) and
`steps`, as far as a queue has them. `left` answers how many jobs are queued or held by a worker.
"""

import os
import sys
import time

URL = os.environ["TRIAL_URL"]
FOLDER = os.environ["TRIAL_FOLDER"]
CHILD_SECONDS = float(os.environ.get("TRIAL_CHILD_SECONDS", "0"))

BEFORE = ((), (0,), (0,), (0,), (1, 2), (2, 3), (3,), (4, 5), (5, 6))
"""What each of the first nine nodes of a graph comes after; the callback comes after the last two."""


def line_of(run, what):
    out = os.open(os.path.join(FOLDER, f"run-{run}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(out, f"{what} {os.getpid()}\n".encode())
    finally:
        os.close(out)


def child_work(run, number):
    if CHILD_SECONDS:
        time.sleep(CHILD_SECONDS)
    line_of(run, f"child {number}")
    return {"number": number}


def exec_worker(*words):
    os.execv(sys.executable, [sys.executable, *words])


def until_stored(store):
    """Again until a server that is on its way up answers."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return store()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main(worker, prepare=lambda: None, **commands):
    if sys.argv[1] == "worker":
        worker()
        return
    prepare()
    print("ready", flush=True)
    for words in map(str.split, sys.stdin):
        began = time.perf_counter()
        found = commands[words[0]](*map(int, words[1:]))
        print(f"ok {found if words[0] == 'left' else time.perf_counter() - began}", flush=True)

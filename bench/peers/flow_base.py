"""What the workflow adapters of other queues share: lines of handlers, and a producer that reads commands.

python flow_X.py worker     runs a worker until it is killed
python flow_X.py produce    reads `group RUN CHILDREN` and `chain RUN LINKS`, answers `ok SECONDS`
"""

import os
import sys
import time

URL = os.environ["TRIAL_URL"]
FOLDER = os.environ["TRIAL_FOLDER"]
CHILD_SECONDS = float(os.environ.get("TRIAL_CHILD_SECONDS", "0"))


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


def main(worker, **commands):
    if sys.argv[1] == "worker":
        worker()
        return
    print("ready", flush=True)
    for words in map(str.split, sys.stdin):
        began = time.perf_counter()
        commands[words[0]](*map(int, words[1:]))
        print(f"ok {time.perf_counter() - began}", flush=True)

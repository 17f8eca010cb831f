"""graphile-worker with a job key or a priority on each job."""

from __future__ import annotations

import os
from pathlib import Path

import _base
from job_options import JOBS
from peer_graphile import Graphile

os.environ["BENCH_ADAPTERS"] = str(_base.HERE)


class GraphileWithOptions(Graphile):
    script = str(Path(__file__).with_suffix(".cjs"))
    config = f"{Graphile.config}, {JOBS} jobs"


ADAPTER = GraphileWithOptions()
if __name__ == "__main__":
    _base.main("options_graphile")

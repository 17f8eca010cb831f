"""In place of a handler process: one that starts and then never says that it is ready."""

from __future__ import annotations

import os
import time
from pathlib import Path

if __name__ == "__main__":
    Path(os.environ["NEVER_READY"]).write_text(str(os.getpid()))
    time.sleep(600)

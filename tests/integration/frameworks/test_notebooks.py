"""In a notebook: blocking calls work in a cell, handles render, and the guide runs as it is printed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

GUIDE = Path(__file__).parents[3] / "docs/guides/notebooks.md"

IN_A_CELL = """
import asyncio, threading
from taskharbor import Harbor

harbor = Harbor("sqlite:///cell.db?durability=normal")

@harbor.task(max_attempts=5)
def add(a: int, b: int) -> int:
    return a + b

@harbor.task(max_attempts=1)
def fail() -> None:
    raise ValueError("<b>no</b>")

job, failed = add.enqueue(2, 3), fail.enqueue()
[other] = harbor.enqueue_many([add.call(1, 1)])
job.state.value
"""

IN_A_LOOP = """
async def inside():
    add.enqueue(4, 5)

def of_its_own():
    try:
        asyncio.run(inside())
    except Exception as error:
        caught.append(str(error))

caught = []
thread = threading.Thread(target=of_its_own)
thread.start()
thread.join()
caught[0]
"""


class Notebook:
    """A kernel that runs cells one after the other."""

    def __init__(self, folder: Path) -> None:
        self._notebook = nbformat.v4.new_notebook()
        self._client = NotebookClient(
            self._notebook, timeout=60, resources={"metadata": {"path": str(folder)}}
        )

    def __enter__(self) -> "Notebook":
        self._kernel = self._client.setup_kernel()
        self._kernel.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.__exit__(None, None, None)

    def run(self, source: str) -> dict[str, Any]:
        """What the last line of the cell shows, by MIME type."""
        cell = nbformat.v4.new_code_cell(source)
        self._notebook.cells.append(cell)
        self._client.execute_cell(cell, len(self._notebook.cells) - 1)
        results = [one for one in cell.outputs if one["output_type"] == "execute_result"]
        return dict(results[-1]["data"]) if results else {}


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    with Notebook(tmp_path) as notebook:
        yield notebook


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_blocking_calls_work_in_a_cell_and_handles_render(notebook: Notebook) -> None:
    assert notebook.run(IN_A_CELL)["text/plain"] == "'ready'"
    waiting = notebook.run("job")["text/html"]
    assert "<td>ready</td>" in waiting
    assert "<td>0 of 5</td>" in waiting
    notebook.run("await harbor.worker().arun(until_idle=True)")

    assert notebook.run("job.result(), other.result()")["text/plain"] == "(5, 2)"
    done = notebook.run("job")["text/html"]
    for cell in ("add", "completed", "1 of 5", "5"):
        assert f"<td>{cell}</td>" in done
    assert "&lt;b&gt;no&lt;/b&gt;" in notebook.run("failed")["text/html"]
    assert "would block the running event loop" in notebook.run(IN_A_LOOP)["text/plain"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_guide_runs_as_it_is_printed(notebook: Notebook) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)

    assert blocks
    for block in blocks:
        notebook.run(block)

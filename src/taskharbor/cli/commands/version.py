"""taskharbor version, when it is asked for with more than main.py answers by itself."""

from __future__ import annotations

import platform

from taskharbor import __version__
from taskharbor.cli.output import Output
from taskharbor.cli.session import with_output


@with_output
def command(out: Output) -> None:
    """Print the version."""
    view = {"taskharbor": __version__, "python": platform.python_version()}
    out.document(view, [f"taskharbor {__version__}"])

"""Every public name and signature is in public_api.txt: a change that users can notice shows in a review."""

from difflib import unified_diff

from tools import surface


def test_the_public_surface_is_the_recorded_one() -> None:
    recorded = surface.FILE.read_text("utf-8").splitlines()

    changes = list(unified_diff(recorded, surface.lines(), "recorded", "now", n=0, lineterm=""))

    assert not changes, "run `make surface`, and say in CHANGELOG.md what changed:\n" + "\n".join(changes)

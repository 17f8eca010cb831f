"""The pages look as they did: compared pixel by pixel with pictures of the pinned browser.

A change that is meant needs `make pictures`; the pull request then shows both.
"""

import base64
import os
from contextlib import ExitStack

import pytest

from tests.browser.conftest import inside
from tools import browser as browsers
from tools import pictures

MOST_DIFFERENT = 0.001
"""The share of pixels that may differ, by more than 16 of 255 in one colour."""
MOST_BYTES = 100 * 1024
COMPARE = """async ([one, other]) => {
  const pixels = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes]));
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height);
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.width !== b.width || a.height !== b.height) return 1;
  let different = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    if ([0, 1, 2].some((colour) => Math.abs(a.data[at + colour] - b.data[at + colour]) > 16)) different += 1;
  }
  return different / (a.data.length / 4);
}"""

pytestmark = pytest.mark.more("an hour of the demo is simulated")


@pytest.fixture(scope="module")
def drawing(browser):
    """The pinned browser, beside that of the other tests, and dashboards with fixed clocks."""
    found = browsers.pinned()
    if found is None:
        must = os.environ.get("CI") and browsers.can_fetch()
        how = "the pinned browser is not here: python tools/browser.py --fetch"
        (pytest.fail if must else pytest.skip)(how)
    path, env = found
    options = {"executable_path": path, "args": browsers.FLAGS, "env": {**os.environ, **env}}
    with ExitStack() as stack:
        shown = {store: stack.enter_context(pictures.dashboard(store)) for store in pictures.COMPARED}
        chromium = inside(browser.browser_type.launch, **options)
        yield chromium, shown
        inside(chromium.close)


def difference(chromium, one, other):
    page = chromium.new_page()
    try:
        return page.evaluate(COMPARE, [base64.b64encode(data).decode() for data in (one, other)])
    finally:
        page.close()


@pytest.mark.parametrize(("width", "theme"), pictures.FORMS)
@pytest.mark.parametrize(
    ("store", "name"), [(store, name) for store in pictures.COMPARED for name in pictures.COMPARED[store]]
)
def test_a_page_looks_as_it_did(drawing, tmp_path, store, name, width, theme):
    chromium, shown = drawing
    kept = pictures.GOLDENS / f"{name}-{theme}-{width}.png"

    now = pictures.drawn(chromium, shown[store], name, width, theme, pictures.COMPARED[store][name])
    (tmp_path / kept.name).write_bytes(now)

    assert difference(chromium, kept.read_bytes(), now) <= MOST_DIFFERENT, f"see {tmp_path / kept.name}"


def test_no_kept_picture_is_large():
    sizes = {path.name: path.stat().st_size for path in pictures.GOLDENS.glob("*.png")}

    assert sizes
    assert {name: size for name, size in sizes.items() if size > MOST_BYTES} == {}


def test_a_small_change_is_noticed(drawing):
    chromium, shown = drawing

    light = pictures.drawn(chromium, shown["hour"], "workers", 390, "light", pictures.HEIGHT)
    dark = pictures.drawn(chromium, shown["hour"], "workers", 390, "dark", pictures.HEIGHT)

    assert difference(chromium, light, light) == 0
    assert difference(chromium, light, dark) > MOST_DIFFERENT

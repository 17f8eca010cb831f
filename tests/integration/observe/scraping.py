"""What a process shows on its metrics port, read as Prometheus reads it."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

Scraped = dict[tuple[str, frozenset[tuple[str, str]]], float]

SLOW = 60.0  # how long to wait for something that should happen soon, on a busy machine


class Target:
    """One port, scraped whenever it is asked."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._process = process
        self.seen: list[Scraped] = []

    def scrape(self) -> Scraped:
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            page = answer.read().decode()
        found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        self.seen.append(found)
        return found

    def until(self, is_so: Callable[[Scraped], bool]) -> Scraped:
        """Scrape until something holds; what was scraped then."""
        deadline = time.monotonic() + SLOW
        found: Scraped = {}
        while time.monotonic() < deadline:
            try:
                found = self.scrape()
            except (urllib.error.URLError, ConnectionError):
                assert self._process.poll() is None, self._process.communicate()[0]
            else:
                if is_so(found):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"waited in vain; last seen: {found}")


def value(scraped: Scraped, name: str, **labels: str) -> float:
    """The sum of everything under this name with these labels; 0 when there is nothing."""
    wanted = set(labels.items())
    return sum(number for (found, present), number in scraped.items() if found == name and wanted <= present)


def has(scraped: Scraped, name: str) -> bool:
    return any(found == name for found, _ in scraped)

"""The handlers of bench_handlers.py, in a module that handler processes can import."""

from __future__ import annotations

import asyncio

from taskharbor import Harbor


def harbor_at(url: str) -> Harbor:
    harbor = Harbor(url)
    harbor.task(name="coroutine")(coroutine)
    harbor.task(name="waits")(waits)
    harbor.task(name="function")(function)
    harbor.task(name="process", run_in="process")(process)
    return harbor


async def coroutine(number: int, pad: str) -> None:
    return None


async def waits(number: int, pad: str) -> None:
    await asyncio.sleep(0.001)


def function(number: int, pad: str) -> None:
    return None


def process(number: int, pad: str) -> None:
    return None

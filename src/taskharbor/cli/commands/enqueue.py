"""taskharbor enqueue: one job, or many from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from taskharbor.cli.enqueue_input import JobLine, jobs_of, new_job, payload_of, update_of
from taskharbor.cli.exit_codes import DONE, UsageError
from taskharbor.cli.parameters import parse_duration, parse_instant, parse_pair, parse_value
from taskharbor.cli.session import Session, with_store_made
from taskharbor.cli.wait import wait_for
from taskharbor.drivers.messages import Enqueued
from taskharbor.model.checks import check_new_job
from taskharbor.model.entropy import Entropy
from taskharbor.model.job import NewJob

_AT_ONCE = 500

DurationFlag = {"parser": parse_duration, "metavar": "DURATION"}


@with_store_made
async def command(
    session: Session,
    type: Annotated[str | None, typer.Argument(metavar="[TYPE]", help="Name of the task.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Arguments of the task; values are JSON or text."),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON", help="The whole payload, instead of NAME=VALUE."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json-file",
            "-f",
            metavar="FILE",
            help="Read jobs from a file, one JSON object per line; - for stdin.",
            allow_dash=True,
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue. Default: that of the task, or `default`.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=-100, max=100, help="Higher runs first. Default: 0.")
    ] = None,
    requires: Annotated[
        str | None,
        typer.Option(
            "--requires", metavar="LANE", help="Lane the job needs: any, cpu, gpu or a name of yours."
        ),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at",
            parser=parse_instant,
            metavar="INSTANT",
            help="Do not run before this time, e.g. 2026-12-01T09:00Z.",
        ),
    ] = None,
    delay: Annotated[
        timedelta | None, typer.Option("--in", help="Do not run before this delay, e.g. 5m.", **DurationFlag)
    ] = None,
    timeout: Annotated[
        timedelta | None, typer.Option("--timeout", help="How long an attempt may run.", **DurationFlag)
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, help="How many attempts it gets.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="At most one waiting and one running job have this key.")
    ] = None,
    update: Annotated[
        list[str] | None,
        typer.Option(
            "--update",
            metavar="NAME=VALUE",
            help="With --key: what to change on a waiting job: data, run_at, retry, reset_counts.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key", help="If a job has this key already, store nothing and print its id."
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME=VALUE", help="Header of the job. Repeatable."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the job to end; exit code 7 if it fails.")
    ] = False,
    wait_timeout: Annotated[
        timedelta | None, typer.Option("--wait-timeout", help="Stop waiting after this.", **DurationFlag)
    ] = None,
) -> int:
    """Enqueue a job and print its id.

    taskharbor enqueue send_welcome user_id=7 --in 5m

    With --app, the job gets the options of the task unless a flag overrides them, and its arguments are
    checked. Without it, the job is stored as given.

    With --json-file, each line is an object with the fields of a job: type, payload, queue, run_at, delay_s,
    priority, key and so on. TYPE and the flags are defaults for all lines. Jobs are stored in batches of 500
    lines; a bad line stops the command, and the batches before it stay enqueued.
    """
    defaults = JobLine(
        type=type,
        queue=queue,
        priority=priority,
        requires=requires,
        run_at=at,
        delay_s=None if delay is None else delay.total_seconds(),
        timeout_s=None if timeout is None else timeout.total_seconds(),
        max_attempts=max_attempts,
        key=key,
        update=update_of(update or [], parse_value),
        idempotency_key=idempotency_key,
        headers=dict(parse_pair(header) for header in headers or ()),
    )
    if json_file is not None:
        if values or payload or wait:
            raise UsageError(
                "--json-file has the arguments of the jobs: leave out NAME=VALUE, --payload and --wait"
            )
        return await _many(session, json_file, defaults)
    if type is None:
        raise UsageError("no task given: run `taskharbor enqueue TYPE name=value`, or use --json-file FILE")
    line = msgspec.structs.replace(defaults, payload=payload_of(values or [], payload, parse_value))
    job = new_job(line, session.harbor, Entropy(), session.now())
    [stored] = await session.driver.enqueue([job])
    if wait:
        return await wait_for(session, [stored.id], wait_timeout)
    _print_one(session, job, stored)
    return DONE


def _print_one(session: Session, job: NewJob, stored: Enqueued) -> None:
    view = {"id": stored.id, "result": stored.result.value, "type": job.type, "queue": job.queue}
    session.out.document(view, [stored.id])
    if not session.out.is_machine_readable:
        session.out.say(f"{stored.result.value} in queue {job.queue}")


async def _many(session: Session, path: Path, defaults: JobLine) -> int:
    """Store batch by batch. A bad line stops it; the message says what is stored already."""
    results: Counter[str] = Counter()
    entropy = Entropy()

    def made(line: JobLine) -> NewJob:
        now = session.now()
        job = new_job(line, session.harbor, entropy, now)
        check_new_job(job, now, session.driver.max_payload)  # here, where the number of the line is known
        return job

    with session.out.progress("enqueued", None) as bar:
        try:
            for jobs in _batches(jobs_of(path, defaults, made)):
                results.update(answer.result.value for answer in await session.driver.enqueue(jobs))
                bar.advance(len(jobs))
        except BaseException:
            if results:
                _print_many(session, results)
            raise
    _print_many(session, results)
    return DONE


def _print_many(session: Session, results: Counter[str]) -> None:
    view: dict[str, Any] = {"enqueued": results.total(), "results": dict(results)}
    words = ", ".join(f"{count} {result}" for result, count in results.items()) or "nothing"
    session.out.document(view, [f"{results.total()} enqueued: {words}"])


def _batches(jobs: Iterator[NewJob]) -> Iterator[list[NewJob]]:
    batch: list[NewJob] = []
    for job in jobs:
        batch.append(job)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch

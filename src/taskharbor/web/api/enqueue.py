"""POST /api/jobs and /api/jobs/batch: enqueue over HTTP.

The stored job is the same that the harbor's own client would store: task options, codec, defaults. Single
jobs that arrive together share a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import astuple, replace
from starlette.responses import Response

from taskharbor.client.task import Task
from taskharbor.drivers.messages import Enqueued, EnqueueResult
from taskharbor.errors import ConfigurationError, InvalidArgument, PayloadError, TaskHarborError
from taskharbor.model.checks import check_name, check_new_job
from taskharbor.model.codec import MAX_DEPTH, JsonCodec
from taskharbor.model.job import NewJob, Update
from taskharbor.tasks.request import JobRequest, template_of
from taskharbor.views import instant_text
from taskharbor.web.api.answers import BatchOut, EnqueuedOut
from taskharbor.web.api.schemas import BatchIn, JobIn
from taskharbor.web.endpoint import Operation
from taskharbor.web.family_scope import refuse_makers
from taskharbor.web.parsing import read_json
from taskharbor.web.problems import Problem, problem_of
from taskharbor.web.redaction import hide_foreign_duplicates
from taskharbor.web.reply import Reply, json_answer
from taskharbor.web.request import Request
from taskharbor.web.service import Service
from taskharbor.web.trace_context import traced

ROOM_AROUND_PAYLOAD = 64 * 1024
_MAX_HEADER_KEY = 250  # leaves room for the index in a batch
_MAX_TEMPLATES = 512
REPLAYED = {"Idempotency-Replayed": "true"}
ANY_ID = "00000000-0000-7000-8000-000000000000"
_SHORT = 2 * MAX_DEPTH
"""A payload this short is within every limit and cannot be nested too deeply."""


async def enqueue(request: Request) -> Response:
    """Store one job: 201 if it is new, 200 if its key or id belongs to an existing one."""
    service, client = request.service, request.service.harbor.client
    body = read_json(await request.body(service.harbor.driver.max_payload + ROOM_AROUND_PAYLOAD), JobIn)
    try:
        job = new_job(service, body, body.id or client._new_id())
    except PayloadError as error:
        raise at_place("$", error) from None
    check_queues_of(request, (job,))
    if body.idempotency_key is None and (key := idempotency_header(request)) is not None:
        job = replace(job, idempotency_key=key.encode())
    [job] = traced(request, (job,))
    answer = await client._aenqueue_one(job)
    if body.id is not None:
        await refuse_other_content(service, [body], [job], [answer])
    if answer.result is EnqueueResult.DUPLICATE:
        await _refuse_key_of_another(request, job, answer)
    request.audited = {"job_id": answer.id, "queue": job.queue, "result": answer.result.value}
    is_new = answer.result in (EnqueueResult.CREATED, EnqueueResult.BLOCKED)
    headers = {"Location": f"{request.scope.get('root_path', '')}/api/jobs/{answer.id}"}
    if answer.result is EnqueueResult.DUPLICATE:
        headers |= REPLAYED
    return json_answer(view(answer), 201 if is_new else 200, headers)


async def enqueue_batch(request: Request) -> Response:
    """Store up to 1,000 jobs in one step: all of them, or none."""
    bodies = read_json(await request.body(request.service.config.max_batch_bytes), BatchIn).jobs
    try:
        return await _enqueued(request, bodies)
    except (Problem, InvalidArgument, PayloadError, ConfigurationError) as error:
        raise placed(request.service, bodies, error) from None


async def _enqueued(request: Request, bodies: Sequence[JobIn]) -> Response:
    service = request.service
    ids = service.harbor.client._new_ids(len(bodies))
    jobs: Sequence[NewJob] = new_jobs(service, bodies, ids)
    check_queues_of(request, jobs)
    if (key := idempotency_header(request)) is not None:
        jobs = [
            job
            if job.idempotency_key is not None
            else replace(job, idempotency_key=f"{key}/{index}".encode())
            for index, job in enumerate(jobs)
        ]
    jobs = traced(request, jobs)
    answers = await service.harbor.client._aenqueue_jobs(jobs)
    await refuse_other_content(service, bodies, jobs, answers)
    answers = await hide_foreign_duplicates(request, await service.driver(), jobs, answers)
    request.audited = {"jobs": len(answers)}
    is_repeat = all(answer.result is EnqueueResult.DUPLICATE for answer in answers)
    return Reply(batch_text(answers), headers=REPLAYED if is_repeat else None)


# ------------------------------------------------------------------ what a body asks for


def new_job(service: Service, body: JobIn, job_id: str) -> NewJob:
    """The job of a body, with the options of its task as defaults."""
    if is_of_app(service, body):
        return _job_of_task(service, body, job_id)
    payload = encoded(service, bytes(body.payload) or b"null")
    return replace(_template(service, body), id=job_id, payload=payload)


def new_jobs(service: Service, bodies: Sequence[JobIn], ids: Sequence[str]) -> list[NewJob]:
    """The same for many. What they share is computed once: it is most of the work."""
    if service.harbor.tasks or type(service.harbor.client.codec) is not JsonCodec:
        return [new_job(service, body, body.id or ids[at]) for at, body in enumerate(bodies)]
    payloads = [bytes(body.payload) or b"null" for body in bodies]
    if max(map(len, payloads)) > min(_SHORT, service.harbor.driver.max_payload):
        payloads = [encoded(service, payload) for payload in payloads]
    jobs = list[NewJob]()
    template, last = _template(service, bodies[0]), astuple(bodies[0])[:_ALL_BUT_PAYLOAD]
    for body, job_id, payload in zip(bodies, ids, payloads, strict=True):
        shape = astuple(body)[:_ALL_BUT_PAYLOAD]
        if shape != last:  # neighbours are often alike
            template, last = _template(service, body), shape
        jobs.append(replace(template, id=body.id or job_id, payload=payload))
    return jobs


def check_queues_of(request: Request, jobs: Sequence[NewJob]) -> None:
    """Check that the caller may store these jobs in their queues and has not used too many."""
    for queue in {job.queue for job in jobs}:
        check_name(queue, "queue")
        request.require_queue(queue)
        request.service.quota.spend(request.principal, queue)
    refuse_makers(request.principal, jobs)


def encoded(service: Service, payload: bytes) -> bytes:
    """A payload that was read as JSON, as the harbor's codec writes it.

    Raises:
        Problem: `payload-too-large`.
        EncodeError: it is nested too deep.
    """
    codec, limit = service.harbor.client.codec, service.harbor.driver.max_payload
    if len(payload) > limit:
        raise Problem(
            "payload-too-large", f"the payload is over the limit of {limit} bytes; nothing was stored"
        )
    if type(codec) is JsonCodec and not _may_be_deep(payload):
        return payload  # it is what JsonCodec would write
    return codec.encode(msgspec.json.decode(payload))


def _may_be_deep(payload: bytes) -> bool:
    """Whether it could be nested too deep: only then it is looked at more closely."""
    return len(payload) > _SHORT and payload.count(b"{") + payload.count(b"[") > MAX_DEPTH


def is_of_app(service: Service, body: JobIn) -> bool:
    """Whether a task of the app checks it and gives it options."""
    tasks = service.harbor.tasks
    return bool(tasks) and (body.type in tasks or not service.config.any_type)


def task_call(service: Service, body: JobIn) -> tuple[Task[Any, Any], tuple[Any, ...], dict[str, Any]]:
    """The task of a body with its options, and the arguments that its payload has."""
    task = service.harbor.tasks.get(body.type)
    if options := options_of(body):
        task = task.with_options(**options)
    payload = msgspec.json.decode(encoded_first(service, body))
    if not isinstance(payload, dict | list):
        raise InvalidArgument("the payload of a task is an object of arguments by name, or an array of them")
    args, kwargs = ((), payload) if isinstance(payload, dict) else (tuple(payload), {})
    return task, args, kwargs


def _job_of_task(service: Service, body: JobIn, job_id: str) -> NewJob:
    task, args, kwargs = task_call(service, body)
    try:
        return task.new_job(job_id, args, kwargs)
    except TypeError as error:
        raise InvalidArgument(str(error)) from None


def encoded_first(service: Service, body: JobIn) -> bytes:
    raw = bytes(body.payload)
    encoded(service, raw)
    return b"{}" if raw in (b"", b"null") else raw


def _template(service: Service, body: JobIn) -> NewJob:
    """Everything but id and payload. Similar bodies share it, which makes batches faster."""
    if body.key is not None or body.run_at is not None or body.idempotency_key is not None or body.headers:
        return _made_template(service, body)
    shape = astuple(body)[:_IN_COMMON]
    known = service.templates.get(shape)
    if known is None:
        known = _made_template(service, body)
        for name, what in ((known.type, "type"), (known.queue, "queue"), (known.requires, "requires")):
            check_name(name, what)  # before it is remembered: what is no name may be very long
        if len(service.templates) >= _MAX_TEMPLATES:
            service.templates.clear()
        service.templates[shape] = known
    return known


_IN_COMMON = JobIn.__struct_fields__.index("id")
_ALL_BUT_PAYLOAD = JobIn.__struct_fields__.index("payload")


def _made_template(service: Service, body: JobIn) -> NewJob:
    harbor = service.harbor
    request = JobRequest(type=body.type, **options_of(body))
    return template_of(request, default_queue=harbor.default_queue, codec=harbor.client.codec)


def options_of(body: JobIn) -> dict[str, Any]:
    """The options of a body, by the names of JobRequest."""
    given: dict[str, Any] = {}
    for name in _OPTIONS:
        value = getattr(body, name)
        if value is not None:
            given[name.removesuffix("_s")] = value
    if body.update is not None:
        given["update"] = Update(
            data=body.update.data,
            run_at=body.update.run_at,
            retry=body.update.retry,
            reset_counts=body.update.reset_counts,
        )
    return given


_OPTIONS = tuple(name for name in JobIn.__struct_fields__ if name not in ("type", "payload", "id", "update"))


def idempotency_header(request: Request) -> str | None:
    """The header, with or without the quotes that its draft requires."""
    raw = request.head(b"idempotency-key")
    if raw is None:
        return None
    text = raw.decode("latin-1")
    key = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not key or len(text) > _MAX_HEADER_KEY or not (key.isascii() and key.isprintable()):
        raise Problem("validation", "the header Idempotency-Key must be 1 to 250 printable ASCII characters")
    return key


# ------------------------------------------------------------------ what is wrong, and where


def placed(service: Service, bodies: Sequence[JobIn], error: Exception) -> Exception:
    """The same error with the index of the job that caused it, if one did.

    The jobs are checked again one by one: keeping track all the time would slow down every batch.
    """
    for index, body in enumerate(bodies):
        try:
            job = new_job(service, body, body.id or ANY_ID)
            check_new_job(job, service.clock.now(), service.harbor.driver.max_payload)
        except (Problem, InvalidArgument, PayloadError, ConfigurationError) as found:
            return at_place(f"$.jobs[{index}]", found) if str(found) == str(error) else error
    return error


def at_place(at: str, error: Problem | TaskHarborError) -> Problem:
    """The path of an error starts at the payload; callers expect it to start at the body."""
    problem = error if isinstance(error, Problem) else problem_of(error)
    path = f"{at}.payload{error.path.removeprefix('$')}" if isinstance(error, PayloadError) else at
    problem.detail = f"{problem.detail} ({path})"
    problem.fields = [{"path": path, "message": str(error)}]
    return problem


# ------------------------------------------------------------------ what is answered


async def refuse_other_content(
    service: Service, bodies: Sequence[JobIn], jobs: Sequence[NewJob], answers: Sequence[Enqueued]
) -> None:
    """An id that was given and exists must mean the same job. Nothing is changed either way.

    Raises:
        Problem: `duplicate-job`, when type, queue or payload differ.
    """
    repeats = [
        jobs[index]
        for index, body in enumerate(bodies)
        if body.id is not None
        and answers[index].result is EnqueueResult.DUPLICATE
        and answers[index].id == body.id
    ]
    if not repeats:
        return
    driver = await service.driver()
    sent = {job.id: job for job in repeats}
    async for job_id, record in service.answer_limit.each(driver, list(sent), now=service.now()):
        job = sent[job_id]
        if record is not None and (record.type, record.queue, record.payload) != (
            job.type,
            job.queue,
            job.payload,
        ):
            raise Problem("duplicate-job", f"job {job.id} exists with another content; nothing was changed")


async def _refuse_key_of_another(request: Request, job: NewJob, answer: Enqueued) -> None:
    """Raises Problem `duplicate-job` when the key belongs to a job that the caller may not see."""
    [shown] = await hide_foreign_duplicates(request, await request.service.driver(), [job], [answer])
    if shown is not answer:
        raise Problem(
            "duplicate-job", "this idempotency key or id belongs to another job; nothing was stored"
        )


def view(answer: Enqueued) -> EnqueuedOut:
    return EnqueuedOut(
        id=answer.id, result=answer.result, at=_instant_text(answer.at) or "", version=answer.version
    )


# Jobs stored together have the same instant: format it once.
_instant_text = lru_cache(maxsize=16)(instant_text)


def batch_text(answers: Sequence[Enqueued]) -> bytes:
    """A BatchOut as JSON. When the answers differ in their ids only, the rest is written once."""
    result, at, version = answers[0].result, answers[0].at, answers[0].version
    ids = [one.id for one in answers if one.at is at and one.result is result and one.version == version]
    if len(ids) == len(answers):
        before, after = _encoder.encode(view(replace(answers[0], id=""))).decode().split('""', 1)
        items = f'"{after},{before}"'.join(ids)
        return f'{{"items":[{before}"{items}"{after}]}}'.encode()
    return _encoder.encode(BatchOut(items=[view(answer) for answer in answers]))


_encoder = msgspec.json.Encoder()


HEADERS = (
    (
        "Idempotency-Key",
        rf"^[!-~]([ -~]{{0,{_MAX_HEADER_KEY - 2}}}[!-~])?$",
        "The job's idempotency_key when the body has none; in a batch, with / and the index.",
    ),
)
_PROBLEMS = ("malformed", "duplicate-job", "timeout", "payload-too-large", "unsupported-media-type")

OPERATIONS = [
    Operation(
        method="POST",
        path="/api/jobs",
        name="enqueue",
        handler=enqueue,
        summary="Enqueue a job",
        body=JobIn,
        answer=EnqueuedOut,
        status=201,
        headers=HEADERS,
        problems=_PROBLEMS,
    ),
    Operation(
        method="POST",
        path="/api/jobs/batch",
        name="enqueue_batch",
        handler=enqueue_batch,
        summary="Enqueue up to 1,000 jobs, all or none",
        body=BatchIn,
        answer=BatchOut,
        headers=HEADERS,
        problems=_PROBLEMS,
    ),
]

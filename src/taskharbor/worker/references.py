"""Arguments that are results of other nodes: read and filled in before the handler runs."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from taskharbor.drivers.family_results import result_of
from taskharbor.errors import JobFailed, PayloadError, Unrecoverable
from taskharbor.model.codec import CODEC_HEADER, Codec, JsonCodec, MsgpackCodec
from taskharbor.model.entropy import child_id
from taskharbor.model.job import Job, JobRecord
from taskharbor.model.state import JobState
from taskharbor.model.workflow import MAX_REF_BYTES, REFS_HEADER
from taskharbor.worker.attempt_tools import AttemptTools
from taskharbor.worker.leased_jobs import LeasedJob

# A payload with results in it may be larger than one that a client stores.
_LARGE = 2 * MAX_REF_BYTES
_CODECS: dict[str, Codec] = {"json": JsonCodec(max_bytes=_LARGE), "msgpack": MsgpackCodec(max_bytes=_LARGE)}


async def with_results(tools: AttemptTools, leased: LeasedJob, job: Job) -> Job:
    """The job with the results that its arguments name.

    Raises:
        Unrecoverable: one of them has no result, or they are too large: another try would not help.
    """
    names: dict[str, str] = msgspec.json.decode(job.headers[REFS_HEADER])
    parent = leased.record.bonds.parent if leased.record.bonds is not None else None
    ids = {parameter: child_id(parent or "", name) for parameter, name in names.items()}
    found = await tools.driver.get(list(dict.fromkeys(ids.values())), now=tools.timing.stated())
    records = {record.id: record for record in found if record is not None}
    codec = _CODECS.get(job.headers.get(CODEC_HEADER, "json"), tools.codec)
    values = codec.decode(job.payload)
    reader = _Reader(codec)
    for parameter, job_id in ids.items():
        values[parameter] = await _value(tools, records.get(job_id), parameter, names[parameter], reader)
    return replace(job, payload=codec.encode(values))


async def _value(
    tools: AttemptTools, record: JobRecord | None, parameter: str, name: str, reader: _Reader
) -> Any:
    if record is None or record.state is not JobState.COMPLETED:
        raise Unrecoverable(f"argument {parameter!r} is the result of {name!r}, which {_ended(record)}")
    try:
        return await result_of(tools.driver, record, reader.read, tools.timing.stated)
    except (JobFailed, PayloadError) as error:
        raise Unrecoverable(f"argument {parameter!r} cannot be read: {error}") from error


def _ended(record: JobRecord | None) -> str:
    if record is None:
        return "is not known any more"
    return f"is {record.state}: {record.last_error}" if record.last_error else f"is {record.state}"


class _Reader:
    """Decodes results and counts their bytes."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._bytes = 0

    def read(self, record: JobRecord) -> Any:
        data = record.result or b"null"
        self._bytes += len(data)
        if self._bytes > MAX_REF_BYTES:
            raise PayloadError(
                f"the results that are arguments of one job take over {MAX_REF_BYTES:,} bytes; "
                "read them with ctx.aresults(name), or store them elsewhere and return references"
            )
        return None if record.result is None else self._codec.decode(data)

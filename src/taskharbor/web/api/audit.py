"""/api/audit: what people changed, and how to change a setting back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response

from taskharbor.model.queue import QueueSettings
from taskharbor.views import instant_text, plain, rules_view
from taskharbor.web.api.answers import AuditItem, AuditOut
from taskharbor.web.api.queues import rules_of, settings_in
from taskharbor.web.api.schedules import entry_of
from taskharbor.web.api.schemas import AuditQuery, QueueIn
from taskharbor.web.audit_book import AuditRecord, SettingChange
from taskharbor.web.endpoint import Operation
from taskharbor.web.parsing import read_instant
from taskharbor.web.problems import Problem
from taskharbor.web.reply import json_answer
from taskharbor.web.request import Request
from taskharbor.web.sentences import deed


async def list_changes(request: Request) -> Response:
    asked: AuditQuery = request.query
    book = request.service.audit_book
    if not await book.is_kept():
        return json_answer(AuditOut(items=[], next_cursor=None, is_kept=False))
    before = None if not asked.before else read_instant("before", asked.before)
    found = await book.page(before, asked.limit)
    more = instant_text(found[-1][0]) if len(found) == asked.limit else None
    return json_answer(AuditOut(items=[_item(*one) for one in found], next_cursor=more, is_kept=True))


def _item(at: datetime, record: AuditRecord) -> AuditItem:
    fields = {name: getattr(record, name) for name in AuditRecord.__struct_fields__}
    return AuditItem(at=instant_text(at) or "", text=deed(record.did, record.details), **fields)


async def undo(request: Request) -> Response:
    """Change a setting back, if it still is what that change made it."""
    book = request.service.audit_book
    found = await book.find(request.parameter("request_id")) if await book.is_kept() else None
    if found is None:
        raise Problem("not-found", "the audit log knows no change under this request id")
    at, record = found
    if record.undo == "done":
        raise Problem("wrong-state", "this change was taken back already; nothing was changed")
    if record.undo is None or record.before is None or record.after is None or record.what is None:
        raise Problem("wrong-state", f"{record.did} cannot be taken back; nothing was changed")
    is_queue = record.did.endswith("_queue")
    await (_undo_queue if is_queue else _undo_schedule)(request, record.what, record.before, record.after)
    book.note_undone(at, record)
    request.audited = {"queue" if is_queue else "schedule": record.what}
    request.change = SettingChange(record.after, record.before, undoes=record.request_id)
    return json_answer(_item(at, msgspec.structs.replace(record, undo="done")))


async def _undo_queue(request: Request, queue: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    _check_still(after, plain(rules_view(await rules_of(request, queue))))
    settings = QueueSettings(queue=queue, **settings_in(msgspec.convert(before, QueueIn)))
    driver = await request.service.driver()
    rules = await driver.configure_queue(settings, now=request.service.now())
    request.service.board.settings_changed(queue, rules)


async def _undo_schedule(request: Request, name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    entry = await entry_of(request, name)
    _check_still(after, {"paused": entry.paused})
    driver = await request.service.driver()
    schedule = msgspec.structs.replace(entry.schedule, paused=bool(before["paused"]))
    await driver.put_schedule(schedule, now=request.service.now())


def _check_still(after: dict[str, Any], now: dict[str, Any]) -> None:
    if any(now.get(name) != value for name, value in after.items()):
        raise Problem("wrong-state", "it was changed again since; nothing was changed")


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/audit",
        name="list_changes",
        handler=list_changes,
        summary="What people changed, the newest first",
        query=AuditQuery,
        answer=AuditOut,
    ),
    Operation(
        method="POST",
        path="/api/audit/{request_id}/undo",
        name="undo_change",
        handler=undo,
        summary="Change a setting back, if it is still as that change made it",
        answer=AuditItem,
        problems=("not-found", "wrong-state"),
    ),
]

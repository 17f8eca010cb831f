"""What may be changed about a finished job when it is requeued."""

from __future__ import annotations

from datetime import timedelta

import msgspec
from msgspec import UNSET, UnsetType

from taskharbor.errors import InvalidArgument
from taskharbor.model.checks import (
    MAX_PAYLOAD,
    check_backoff,
    check_count,
    check_headers,
    check_name,
    check_priority,
    check_span,
)


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """New values for a requeued job; what is left out stays. Id, queue and key never change."""

    type: str | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    requires: str | UnsetType = UNSET
    timeout: timedelta | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    max_stalls: int | UnsetType = UNSET
    min_backoff: timedelta | None | UnsetType = UNSET
    max_backoff: timedelta | None | UnsetType = UNSET


NO_EDIT = Edit()


def check_edit(edit: Edit, max_payload: int = MAX_PAYLOAD) -> None:
    if edit is NO_EDIT:
        return
    if edit.type is not UNSET:
        check_name(edit.type, "type")
    if edit.requires is not UNSET:
        check_name(edit.requires, "requires")
    if edit.payload is not UNSET and (not isinstance(edit.payload, bytes) or len(edit.payload) > max_payload):
        raise InvalidArgument(f"payload must be at most {max_payload} bytes")
    if edit.headers is not UNSET:
        check_headers(edit.headers)
    if edit.priority is not UNSET:
        check_priority(edit.priority)
    for name in ("max_attempts", "max_stalls"):
        if (number := getattr(edit, name)) is not UNSET:
            check_count(number, name)
    if edit.timeout is not UNSET:
        check_span(edit.timeout, "timeout")
    low, high = edit.min_backoff, edit.max_backoff
    check_backoff(None if low is UNSET else low, None if high is UNSET else high)

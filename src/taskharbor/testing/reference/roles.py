"""Who holds a role in the reference model. The numbers of terms are the store's; their order is not."""

from __future__ import annotations

from datetime import datetime, timedelta

from taskharbor.drivers.messages import RoleLease


class Roles:
    """The last lease of each role, run out or not."""

    def __init__(self) -> None:
        self._leases: dict[str, RoleLease] = {}

    def hold(self, role: str, holder: str, ttl: timedelta, now: datetime, term: int) -> RoleLease:
        """What the store must answer, if `term` is the term it names."""
        before = self._leases.get(role)
        is_held = before is not None and before.expires_at > now
        if before is not None and is_held and before.holder != holder:
            return RoleLease(role, before.holder, before.term, before.expires_at, False)
        if before is not None:
            assert term == before.term if is_held else term > before.term, f"term {term} after {before.term}"
        self._leases[role] = RoleLease(role, holder, term, now + ttl, True)
        return self._leases[role]

    def release(self, role: str, holder: str, now: datetime) -> bool:
        before = self._leases.get(role)
        if before is None or before.holder != holder or before.expires_at <= now:
            return False
        self._leases[role] = RoleLease(role, holder, before.term, now, True)
        return True

    def instants(self) -> set[datetime]:
        return {lease.expires_at for lease in self._leases.values()}

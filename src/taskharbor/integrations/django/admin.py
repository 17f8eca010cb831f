"""The page of jobs in Django's admin: queues, failures of the last day, retry and cancel. No ORM."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone

from taskharbor.drivers.contract import Driver
from taskharbor.drivers.messages import Query
from taskharbor.errors import TaskHarborError
from taskharbor.integrations.django.apps import DASHBOARD
from taskharbor.integrations.django.backend import our_backends
from taskharbor.integrations.django.models import Job
from taskharbor.model.state import JobState

_SHOWN = 50
_DAY = timedelta(days=1)


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """Users need the permission to view jobs, and to change them for retry and cancel."""

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        if not self.has_view_permission(request):
            raise PermissionDenied
        backends = our_backends()
        chosen = next((one for one in backends if one.alias == request.GET.get("backend")), backends[0])
        if request.method == "POST":
            return self._change(request, chosen)
        queues, failures, error = [], [], ""
        try:
            queues, failures = _on(chosen, _look)
        except TaskHarborError as trouble:
            error = str(trouble)
        context = {
            **self.admin_site.each_context(request),
            "title": "Jobs",
            "opts": self.model._meta,
            "backends": [one.alias for one in backends],
            "backend": chosen.alias,
            "queues": queues,
            "failures": failures,
            "error": error,
            "dashboard": getattr(request, "scope", {}).get(DASHBOARD, ""),
            "may_change": self.has_change_permission(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "taskharbor/jobs.html", context)

    def _change(self, request: Any, backend: Any) -> Any:
        """Retry or cancel one job, then show the page again."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        job_id = request.POST.get("id", "").strip()
        verb = "cancel" if "cancel" in request.POST else "retry"
        try:
            [answer] = _on(backend, _cancel if verb == "cancel" else _retry, job_id)
            if isinstance(answer, Exception):
                raise answer
            messages.success(request, f"{verb.capitalize()}: {job_id}")
        except TaskHarborError as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(request.get_full_path())


def _on(backend: Any, work: Any, *arguments: Any) -> Any:
    """Do this on a handle of its own, which is closed at the end: the page holds no connection."""
    from asgiref.sync import async_to_sync

    async def opened() -> Any:
        async with backend.harbor.driver.another() as driver:
            return await work(driver, *arguments)

    return async_to_sync(opened)()


async def _look(driver: Driver) -> tuple[list[Any], list[Any]]:
    infos = await driver.queues()
    since = timezone.now() - _DAY
    failed = Query(
        states=(JobState.FAILED,),
        order_by="ended",
        newest_first=True,
        ended_after=since,
        limit=_SHOWN,
        payloads=False,
    )
    queues = [{"name": info.queue, "counts": info.counts} for info in infos if info.queue != "*"]
    return queues, list((await driver.find(failed)).jobs)


async def _retry(driver: Driver, job_id: str) -> Any:
    return await driver.requeue([job_id])


async def _cancel(driver: Driver, job_id: str) -> Any:
    return await driver.cancel([job_id])

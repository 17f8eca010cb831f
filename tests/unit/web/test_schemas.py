"""The types of the API and what it sends say the same; so do errors and problems."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from taskharbor import Harbor, errors
from taskharbor.drivers.messages import Counts, QueueInfo
from taskharbor.drivers.wire import VERBS
from taskharbor.model.job import AttemptRecord, JobRecord, NewJob, Progress
from taskharbor.model.limits import RateLimit
from taskharbor.model.presence import WorkerInfo, WorkerReport
from taskharbor.model.queue import QueueRules, Retention
from taskharbor.model.schedule import Schedule, StoredSchedule
from taskharbor.model.state import JobState
from taskharbor.views import job_details, job_view, plain, queue_view, rules_view, schedule_view, worker_view
from taskharbor.web.app import OPERATIONS, create_app
from taskharbor.web.driver_routes import DriverVerbs
from taskharbor.web.openapi import openapi_document
from taskharbor.web.permissions import access_rule
from taskharbor.web.problems import KINDS, ProblemOut, problem_of, problem_response

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
ID = "01900000-0000-7000-8000-000000000001"
JOB = JobRecord(
    id=ID,
    seq=1,
    type="x",
    queue="q",
    state=JobState.FAILED,
    payload=b'{"a":1}',
    created_at=NOW,
    updated_at=NOW,
    key=b"k",
    progress=Progress(0.5, "half"),
    result=b"3",
    history=(AttemptRecord(1, "w", NOW, NOW, "failed", "boom"),),
)
RULES = QueueRules(
    max_running=1, enqueue_rate=RateLimit(1, timedelta(seconds=1)), retention=Retention(), fail_queue="f"
)
SCHEDULE = StoredSchedule(
    schedule=Schedule(name="s", template=NewJob(id="", type="x"), every=timedelta(minutes=1)),
    paused=False,
    last_tick_at=NOW,
    created_at=NOW,
    updated_at=NOW,
)
UNREADABLE = msgspec.structs.replace(
    JOB, payload=b"\xff", result=b"\xff", headers={"taskharbor-codec": "own"}
)


@pytest.mark.parametrize(
    "view",
    [
        job_view(JOB),
        job_details(JOB),
        job_details(UNREADABLE),
        queue_view(QueueInfo(queue="q", rules=RULES, counts=Counts()), NOW),
        rules_view(RULES),
        worker_view(WorkerInfo(report=WorkerReport(worker_id="w"), seen_at=NOW, expires_at=NOW)),
        schedule_view(SCHEDULE, NOW, now=NOW),
    ],
    ids=lambda view: type(view).__name__,
)
def test_the_values_of_a_view_are_of_the_types_that_it_declares(view: msgspec.Struct) -> None:
    """msgspec checks no types when a struct is made; the OpenAPI document is made from them."""
    assert msgspec.convert(plain(view), type(view)) == view


def test_every_error_of_ours_becomes_a_problem_of_a_known_kind() -> None:
    samples = {
        errors.JobNotFound(ID): 404,
        errors.DuplicateJob(ID, ID): 409,
        errors.NotAllowedInState(ID, verb="cancel", state="completed"): 409,
        errors.RateLimited("q", timedelta(seconds=1.2)): 429,
        errors.LeaseExpired(ID): 409,
        errors.InvalidArgument("no"): 422,
        errors.EncodeError("no", "$.a"): 422,
        errors.UnknownTask("x"): 422,
        errors.DriverUnavailable("away"): 503,
        errors.DriverClosed(): 503,
        errors.DriverMisbehaved("odd"): 500,
    }
    for error, status in samples.items():
        problem = problem_of(error)
        response = problem_response(problem, instance="/x", request_id="r")
        body = msgspec.json.decode(response.body, type=ProblemOut)
        assert (response.status_code, body.status) == (status, status), error
        assert body.type == f"urn:taskharbor:problem:{problem.kind}"
    assert problem_of(errors.RateLimited("q", timedelta(seconds=1.2))).headers == {"Retry-After": "2"}


def test_the_document_names_every_operation_once_and_all_its_problems() -> None:
    document = openapi_document(OPERATIONS)
    operations = [one for path in document["paths"].values() for one in path.values()]

    assert document["openapi"] == "3.1.0"
    assert len({one["operationId"] for one in operations}) == len(OPERATIONS) == len(operations)
    for operation in OPERATIONS:
        responses = document["paths"][operation.path][operation.method.lower()]["responses"]
        assert {str(KINDS[kind][0]) for kind in operation.problems} <= set(responses)
        assert str(operation.status) in responses
        if operation.name != "open_session":  # open, and refuses a wrong token
            assert ("401" in responses) != operation.access_rule.is_open


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = openapi_document(OPERATIONS)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if "$ref" in part else set()
            return own.union(*map(references, part.values())) if part else own
        return set().union(*map(references, part)) if isinstance(part, list) else set()

    assert references(document["paths"]) | references(document["components"]) <= known


async def test_the_document_that_is_served_has_every_verb_of_the_driver() -> None:
    verbs = DriverVerbs(create_app(Harbor("memory://"), local_callers_are_admin=True).service).operations()
    document = openapi_document([*OPERATIONS, *verbs])

    for verb in VERBS.values():
        described = document["paths"][f"/api/driver/{verb.name}"]["post"]
        reference = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert set(schema["properties"]) == set(verb.request.__struct_fields__)
        assert schema["additionalProperties"] is False
        assert all(role in described["description"] for role in access_rule(f"driver.{verb.name}").roles)
    assert len({one["operationId"] for path in document["paths"].values() for one in path.values()}) == len(
        [*OPERATIONS, *verbs]
    )


def test_what_changes_something_is_no_get() -> None:
    assert {one.method for one in OPERATIONS if one.access_rule.is_audited} <= {
        "POST",
        "PUT",
        "PATCH",
        "DELETE",
    }
    looks = {(one.method, one.name) for one in OPERATIONS if not one.access_rule.is_audited}
    by_post = {name for method, name in looks if method != "GET"}
    assert by_post == {"follow", "preview_schedule"}, "they take more than fits into a URL"

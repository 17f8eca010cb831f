"""A test of the tests: the kit passes a sound driver and names the fault of a broken one."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = pytest.mark.more("a pytest of its own; it tests the kit, not the product")
ROOT = Path(__file__).parents[2]

# The fault → cases that must notice it. The last two: the driver of the documentation with one line changed.
MUST_FAIL = {
    "owner_guard": [
        "test_another_token_acknowledges_nothing",
        "test_another_token_extends_nothing",
        "test_a_worker_cannot_be_mistaken_for_its_own_earlier_attempt",
        "test_a_retry_needs_the_token_in_time_and_a_running_job",
        "test_a_fail_needs_the_token_in_time_and_a_running_job",
        "test_no_verb_works_with_another_token",
        "test_a_stale_worker_changes_nothing_in_any_of_three_situations",
        "test_another_token_comes_before_an_expired_lease",
    ],
    "no_expiry_check": [
        "test_an_expired_lease_is_never_revived",
        "test_no_verb_works_from_the_end_of_a_lease_on",
        "test_an_extended_lease_moves_the_instant",
        "test_a_job_can_be_acknowledged_until_its_lease_ends",
        "test_a_late_worker_cannot_hand_a_job_back",
        "test_a_fail_needs_the_token_in_time_and_a_running_job",
        "test_extensions_are_answered_one_by_one",
    ],
    "two_step_claim": [
        "test_one_job_has_one_winner",
        "test_many_claims_share_out_many_jobs",
        "test_an_expired_job_has_one_next_holder",
        "test_exchanges_side_by_side_never_share_a_job",
        "test_claims_side_by_side_never_pass_the_limit",
        "test_a_cancel_and_a_claim_at_once_agree",
        "test_tasks_of_one_loop_over_several_handles_share_out_alike",
    ],
    "prunes_children": ["test_a_child_is_pruned_with_its_root_and_before_it"],
    "toy_least_urgent_first": [
        "test_the_more_urgent_job_comes_first",
        "test_priority_then_eligibility_then_place",
        "test_a_reclaimed_job_keeps_its_place",
    ],
    "toy_claims_wakeups_it_has_not": ["test_an_enqueue_wakes_a_waiting_worker"],
}
NOT_TOUCHED = {
    "owner_guard": "test_claims_side_by_side_never_pass_the_limit",
    "no_expiry_check": "test_another_token_acknowledges_nothing",
    "two_step_claim": "test_an_expired_lease_is_never_revived",
    "prunes_children": "test_another_token_acknowledges_nothing",
    "toy_least_urgent_first": "test_one_job_has_one_winner",
    "toy_claims_wakeups_it_has_not": "test_the_more_urgent_job_comes_first",
}
OPTIONS = [
    "-p",
    "no:cacheprovider",
    "--assert=plain",
    "-o",
    "addopts=",
    "-o",
    "asyncio_mode=auto",
    "--rootdir=.",
]
EVERY_CASE = sorted({name for names in MUST_FAIL.values() for name in names})

SUITE = """
import pytest
from taskharbor.drivers.capabilities import Capabilities
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.conformance import invariants_hold, {cases}
from tests.contract import broken_drivers
from tests.contract.test_toy_driver import toy


class LeastUrgentFirst(toy.ToyDriver):
    def order(self, job, lanes):
        return lanes.index(job.requires), job.priority, job.eligible_at, job.seq


class ClaimsWakeupsItHasNot(toy.ToyDriver):
    def __init__(self, shelf=None, **options):
        super().__init__(shelf, **options)
        self.capabilities = Capabilities(atomic_across_queues=True, wakeups=True)


DRIVERS = {
    "sound": MemoryDriver,
    "owner_guard": broken_drivers.OwnerGuardDriver,
    "no_expiry_check": broken_drivers.NoExpiryCheckDriver,
    "two_step_claim": broken_drivers.TwoStepClaimDriver,
    "prunes_children": broken_drivers.PrunesChildrenDriver,
    "toy_least_urgent_first": LeastUrgentFirst,
    "toy_claims_wakeups_it_has_not": ClaimsWakeupsItHasNot,
}


WANTED = {wanted}


@pytest.fixture(params=DRIVERS)
async def driver(request):
    if request.node.originalname not in WANTED[request.param]:
        pytest.skip("asked of other drivers")
    async with DRIVERS[request.param]() as driver:
        yield driver
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """(driver, case) → passed, failed or skipped: the named cases on every driver, in another process."""
    folder = tmp_path_factory.mktemp("kit")
    suite = SUITE.replace("{cases}", ", ".join(EVERY_CASE)).replace("{wanted}", repr(wanted()))
    (folder / "test_suite.py").write_text(suite, "utf-8")
    report = folder / "report.xml"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", "test_suite.py", *OPTIONS, f"--junitxml={report}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert report.exists(), run.stdout + run.stderr
    return verdicts_in(report)


def wanted() -> dict[str, list[str]]:
    """Driver → the cases to run on it."""
    return {"sound": EVERY_CASE} | {fault: [*names, NOT_TOUCHED[fault]] for fault, names in MUST_FAIL.items()}


def verdicts_in(report: Path) -> dict[tuple[str, str], str]:
    """A case with a table failed when any of its rows did."""
    found: dict[tuple[str, str], str] = {}
    for case in ET.parse(report).iter("testcase"):
        name, _, row = case.attrib["name"].partition("[")
        driver = next(part for part in row.rstrip("]").split("-") if part in {*MUST_FAIL, "sound"})
        tags = {child.tag for child in case}
        verdict = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        if found.get((driver, name)) != "failed":
            found[driver, name] = verdict
    return found


@pytest.mark.parametrize("fault", MUST_FAIL)
def test_a_broken_driver_fails_where_it_is_broken(fault: str, verdicts: dict[tuple[str, str], str]) -> None:
    noticed = {name: verdicts[fault, name] for name in MUST_FAIL[fault]}

    assert noticed == dict.fromkeys(MUST_FAIL[fault], "failed")


def test_a_sound_driver_passes_the_same_cases(verdicts: dict[tuple[str, str], str]) -> None:
    assert {name: verdicts["sound", name] for name in EVERY_CASE} == dict.fromkeys(EVERY_CASE, "passed")


@pytest.mark.parametrize("fault", MUST_FAIL)
def test_a_broken_driver_passes_what_its_fault_does_not_touch(
    fault: str, verdicts: dict[tuple[str, str], str]
) -> None:
    assert verdicts[fault, NOT_TOUCHED[fault]] == "passed"


def test_each_of_the_three_classic_faults_is_noticed_five_times() -> None:
    classics = ("owner_guard", "no_expiry_check", "two_step_claim")

    assert all(len(MUST_FAIL[fault]) >= 5 for fault in classics)

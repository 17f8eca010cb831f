"""The contract as messages: every verb and every error goes over and comes back."""

import inspect
from datetime import timedelta

import msgspec
import pytest

from taskharbor import errors
from taskharbor.drivers import wire
from taskharbor.drivers.contract import Driver
from taskharbor.drivers.error_codec import Failure, error_of, failure_of
from taskharbor.drivers.messages import Exchanged
from taskharbor.model.job import Lease
from taskharbor.model.settlement import Fail

# Verbs that are no calls to a store: they open and close handles, or are made of the others.
NOT_ON_THE_WIRE = {
    "ack",
    "another",
    "check_tx",
    "clock",
    "close",
    "enqueue_blocking",
    "enqueue_in",
    "enqueue_on",
    "extend_lease",
    "fail",
    "get_on",
    "is_open",
    "migration_ledger",
    "migration_scripts",
    "of_the_same_store",
    "open",
    "open_to_look",
    "open_unmigrated",
    "reserve_one",
    "retry",
    "transaction",
}

ERRORS = [
    errors.JobNotFound("a"),
    errors.LeaseLost("a"),
    errors.JobNotInflight("a"),
    errors.LeaseMismatch("a"),
    errors.LeaseExpired("a"),
    errors.DuplicateJob("a", "b"),
    errors.NotAllowedInState("a", verb="requeue", state="running"),
    errors.BrokenBond("a", "is unknown"),
    errors.ParkRefused("a", "cannot be parked"),
    errors.RateLimited("q", timedelta(seconds=1, microseconds=1)),
    errors.InvalidLeaseDuration(timedelta(seconds=-1)),
    errors.InvalidArgument("no"),
    errors.DriverUnavailable("away", done=None),
    errors.DriverUnavailable("away", done=False),
    errors.StoreFull("full"),
    errors.StoreRefused("read-only"),
    errors.DriverMisbehaved("odd"),
    errors.SchemaOutOfDate("old", ("0001", "0002")),
]


def test_every_verb_of_the_contract_has_its_messages() -> None:
    public = {
        name
        for name, value in inspect.getmembers(Driver)
        if callable(value) and not name.startswith(("_", "do_"))
    }

    assert public - NOT_ON_THE_WIRE == set(wire.VERBS) - {"hello"}


@pytest.mark.parametrize("name", sorted(set(wire.VERBS) - {"hello"}))
def test_a_message_has_the_arguments_of_its_verb(name: str) -> None:
    wanted = set(inspect.signature(getattr(Driver, name)).parameters) - {"self"}

    assert set(wire.VERBS[name].request.__struct_fields__) == wanted


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: errors.TaskHarborError) -> None:
    failure = msgspec.json.decode(msgspec.json.encode(failure_of(error)), type=Failure)
    again = error_of(failure)

    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("failure", [Failure("SomethingNew", "x"), Failure("DuplicateJob", "x", {})])
def test_an_error_that_is_not_understood_is_the_servers_fault(failure: Failure) -> None:
    assert isinstance(error_of(failure), errors.DriverMisbehaved)


def test_errors_among_answers_come_back_at_their_place() -> None:
    exchanged = Exchanged(
        [errors.LeaseExpired("a"), errors.JobNotInflight("b")], [], errors.InvalidArgument("c")
    )

    answer = wire.read_answer("exchange", wire.encode(exchanged))

    assert [type(item) for item in answer.settled] == [errors.LeaseExpired, errors.JobNotInflight]
    assert str(answer.error) == "c"


def test_half_characters_do_not_stop_a_settlement() -> None:
    body = wire.encode({"settlements": [Fail(Lease("a", "t"), "half \ud800 of it")], "now": None})

    [settlement] = wire.read_request("settle", body)["settlements"]
    assert settlement.reason == "half ? of it"


def test_an_argument_that_nobody_knows_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        wire.read_request("get", b'{"ids": [], "idz": []}')

"""What failing jobs have in common, and what only seems so."""

import pytest

from taskharbor.model.common_arguments import MOST_SHOWN, in_common, values_in


def jobs(*pairs: tuple[str, str], count: int = 10) -> list[list[tuple[str, str]]]:
    return [list(pairs) for _ in range(count)]


def test_a_value_of_most_jobs_that_few_others_have_is_shown() -> None:
    some = jobs(("args.template", "welcome"), ("queue", "mail"), count=9) + jobs(("queue", "mail"), count=1)
    others = jobs(("args.template", "bye"), ("queue", "mail"), count=8) + jobs(
        ("args.template", "welcome"), count=2
    )

    [found] = in_common(some, others)

    assert (found.what, found.value) == ("args.template", "welcome")
    assert (found.share, found.share_of_others) == (0.9, 0.2)
    assert found.text == 'template="welcome"'


def test_what_everybody_has_is_not_shown() -> None:
    assert in_common(jobs(("queue", "mail")), jobs(("queue", "mail"))) == []


def test_without_others_there_is_nothing_to_compare_with() -> None:
    [found] = in_common(jobs(("queue", "mail")), [])

    assert (found.share, found.share_of_others) == (1.0, None)
    assert found.text == "queue mail"


def test_few_others_do_not_change_the_answer() -> None:
    """Each more of them would: a page that asks again would show and hide it in turn."""
    some, other = jobs(("queue", "mail")), jobs(("queue", "mail"), count=1)

    answers = [in_common(some, other * count) for count in range(10)]

    assert answers == [answers[0]] * 10
    assert in_common(some, other * 10) == []


def test_two_jobs_have_nothing_in_common_yet() -> None:
    assert in_common(jobs(("queue", "mail"), count=2), []) == []


def test_only_the_clearest_are_shown_first() -> None:
    some = jobs(*((f"args.{n}", "x") for n in range(9)))
    others = jobs(*((f"args.{n}", "x") for n in range(8)), count=5) + jobs(count=5)

    found = in_common(some, others)

    assert len(found) == MOST_SHOWN
    assert found[0].what == "args.8"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"user": {"id": 7, "name": "ana"}}, [("args.user.id", "7"), ("args.user.name", "ana")]),
        ([1, "x"], [("args.0", "1"), ("args.1", "x")]),
        ({"password": "***", "flag": True, "none": None}, [("args.flag", "true"), ("args.none", "null")]),
        ({"a": {"b": {"c": {"d": 1}}}}, []),
        ({"long": "x" * 81}, []),
        (None, [("args", "null")]),
    ],
)
def test_values_by_their_paths(arguments: object, values: list[tuple[str, str]]) -> None:
    assert values_in(arguments) == values


def test_a_large_payload_is_cut() -> None:
    assert len(values_in({f"a{n}": n for n in range(1000)})) == 50

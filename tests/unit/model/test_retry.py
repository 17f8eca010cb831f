"""The wait before the next try: the formula, its edges, and the presets."""

from datetime import timedelta

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.model.entropy import Entropy
from taskharbor.model.retry import PRESETS, RetryPolicy, error_names
from taskharbor.model.settlement import attempts_allowed


def ms(number):
    return timedelta(milliseconds=number)


def series(policy, count, **own):
    return [policy.next_delay(n, Entropy(1), **own) / ms(1) for n in range(1, count + 1)]


def test_the_wait_doubles_up_to_its_cap():
    """R000-36: 100 ms, 1 s, × 2."""
    policy = RetryPolicy(base=ms(100), maximum=ms(1000), multiplier=2.0, jitter=0.0)

    assert series(policy, 6) == [100, 200, 400, 800, 1000, 1000]


@pytest.mark.parametrize(
    ("rule", "error", "expected"),
    [
        ({}, KeyError(), True),
        ({"retry_on": (OSError,)}, ConnectionResetError(), True),
        ({"retry_on": (OSError,)}, KeyError(), False),
        ({"retry_on": ("OSError",)}, ConnectionResetError(), True),
        ({"retry_on": ("builtins.OSError",)}, ConnectionResetError(), True),
        ({"no_retry_on": (KeyError, "ValueError")}, UnicodeError(), False),
        ({"no_retry_on": (KeyError, "ValueError")}, TypeError(), True),
        ({"retry_on": (OSError,), "no_retry_on": ("FileNotFoundError",)}, FileNotFoundError(), False),
        ({"retry_on": (OSError,), "no_retry_on": ("FileNotFoundError",)}, PermissionError(), True),
    ],
    ids=repr,
)
def test_exceptions_decide_whether_another_try_is_worth_it(rule, error, expected):
    assert RetryPolicy(**rule).tries_again(error_names(error)) is expected


@pytest.mark.parametrize("kind", [7, "", int, None])
def test_what_is_no_exception_is_refused(kind):
    with pytest.raises(ConfigurationError, match="exceptions or their names"):
        RetryPolicy(retry_on=(kind,))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"retry_on": "ValueError"}, r"retry_on takes a tuple: retry_on=\('ValueError',\)"),
        ({"no_retry_on": ValueError}, r"no_retry_on takes a tuple: no_retry_on=\(ValueError,\)"),
        ({"max_attempts": "3"}, "max_attempts='3' must be a whole number"),
        ({"multiplier": "2"}, "multiplier='2' must be a number"),
        ({"jitter": True}, "jitter=True must be a number"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(rule, why):
    with pytest.raises(ConfigurationError, match=why):
        RetryPolicy(**rule)


@pytest.mark.parametrize("failures", [0, -1])
def test_no_failure_waits_for_nothing(failures):
    assert RetryPolicy().next_delay(failures, Entropy(1)) == timedelta(0)


@pytest.mark.parametrize("base", [ms(0), ms(-5)])
def test_a_base_of_nothing_waits_for_nothing(base):
    assert series(RetryPolicy(base=base), 3) == [0, 0, 0]


def test_a_multiplier_below_one_counts_as_one():
    assert series(RetryPolicy(base=ms(100), multiplier=0.5, jitter=0.0), 3) == [100, 100, 100]


def test_a_cap_below_the_base_is_lifted_to_it():
    assert series(RetryPolicy(base=ms(500), maximum=ms(100), jitter=0.0), 3) == [500, 500, 500]


def test_jitter_stays_within_its_share_and_under_the_cap():
    policy = RetryPolicy(base=ms(1000), maximum=ms(4000), jitter=0.2)
    entropy = Entropy(7)

    first = [policy.next_delay(1, entropy) for _ in range(2000)]
    capped = [policy.next_delay(9, entropy) for _ in range(2000)]

    assert ms(800) <= min(first) < ms(820)
    assert ms(1180) < max(first) <= ms(1200)
    assert ms(3200) <= min(capped)
    assert max(capped) == ms(4000)


@pytest.mark.parametrize(("jitter", "most"), [(-1.0, 1000), (5.0, 2000)])
def test_jitter_is_clamped_to_a_fraction(jitter, most):
    policy = RetryPolicy(base=ms(1000), maximum=ms(60_000), jitter=jitter)
    entropy = Entropy(3)

    waits = [policy.next_delay(1, entropy) for _ in range(500)]

    assert ms(0) <= min(waits)
    assert max(waits) <= ms(most)


def test_a_seed_repeats_the_series():
    policy = RetryPolicy()

    def run():
        entropy = Entropy(42)
        return [policy.next_delay(n, entropy) for n in range(1, 20)]

    assert run() == run()


def test_the_ten_thousandth_failure_waits_for_the_cap():
    assert RetryPolicy(jitter=0.0).next_delay(10_000, Entropy(1)) == timedelta(hours=1)


def test_a_jobs_own_range_replaces_the_policys():
    policy = RetryPolicy(base=ms(1), maximum=ms(2), jitter=0.0)

    assert series(policy, 5, least=ms(100), most=ms(350)) == [100, 200, 350, 350, 350]


def test_shapes():
    linear = RetryPolicy(base=ms(100), maximum=ms(250), jitter=0.0, shape="linear")
    fixed = RetryPolicy(base=ms(100), jitter=0.0, shape="fixed")

    assert series(linear, 4) == [100, 200, 250, 250]
    assert series(fixed, 3) == [100, 100, 100]


def test_an_unknown_shape_and_a_negative_maximum_are_refused():
    with pytest.raises(ConfigurationError, match="shape"):
        RetryPolicy(shape="square")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_attempts"):
        RetryPolicy(max_attempts=-1)


CORE = RetryPolicy(base=ms(200), maximum=ms(5_000))
SCHEDULER = RetryPolicy(base=ms(1_000), maximum=ms(60_000), jitter=0.0)
SCHEDULER_LINEAR = RetryPolicy(base=ms(1_000), maximum=ms(60_000), jitter=0.0, shape="linear")
KEYED = RetryPolicy(base=ms(2_000), maximum=ms(300_000), jitter=0.0)


@pytest.mark.parametrize(
    ("policy", "least", "most", "seconds"),
    [
        (PRESETS["exponential"], 0.8, 1.2, [1, 2, 4, 8, 16, 32, 64]),
        (PRESETS["linear"], 0.8, 1.2, [1, 2, 3, 4, 5, 6, 7]),
        (CORE, 0.8, 1.2, [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]),
        (SCHEDULER, 1, 1, [1, 2, 4, 8, 16, 32, 60]),
        (SCHEDULER_LINEAR, 1, 1, [1, 2, 3, 4, 5, 6, 7]),
        (KEYED, 1, 1, [2, 4, 8, 16, 32, 64, 128]),
    ],
)
def test_policies_give_their_series(policy, least, most, seconds):
    """C20: each series, within its own jitter."""
    for n, expected in enumerate(seconds, 1):
        wait = policy.next_delay(n, Entropy(n)).total_seconds()
        assert expected * least - 1e-6 <= wait <= expected * most + 1e-6


def test_the_caps_of_the_policies():
    caps = [policy.next_delay(500, Entropy(2)) for policy in (SCHEDULER, SCHEDULER_LINEAR, KEYED)]

    assert caps == [timedelta(seconds=60), timedelta(seconds=60), timedelta(minutes=5)]


def test_the_presets():
    assert PRESETS["exponential"] == RetryPolicy()
    assert PRESETS["linear"] == RetryPolicy(shape="linear")
    assert PRESETS["none"].max_attempts == 1


@pytest.mark.parametrize(
    ("job", "policy", "allowed"), [(0, 0, 25), (0, 3, 3), (5, 3, 5), (2, 50, 2), (1, 0, 1)]
)
def test_a_jobs_own_number_of_attempts_is_never_capped(job, policy, allowed):
    assert attempts_allowed(job, policy) == allowed


@pytest.mark.parametrize("base", [ms(0), ms(-5)])
def test_a_wait_of_nothing_draws_nothing_from_chance(base):
    """A seed replays the same run whether or not somebody waits for nothing in between."""
    asked, fresh = Entropy(3), Entropy(3)

    RetryPolicy(base=base).next_delay(1, asked)

    assert asked.between(0.0, 1.0) == fresh.between(0.0, 1.0)


def test_an_unknown_shape_is_refused():
    with pytest.raises(ConfigurationError, match="exponential, linear or fixed"):
        RetryPolicy(shape="round")  # type: ignore[arg-type]

"""Tokens: what a file keeps, what opens a door, and what no longer does."""

import hmac
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.model.entropy import Entropy
from taskharbor.testing.clock import SimulatedClock
from taskharbor.web.tokens import Token, TokenFile, new_token


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def file(tmp_path: Path, clock: SimulatedClock) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock)


def made(file: TokenFile, clock: SimulatedClock, **options: object) -> tuple[str, Token]:
    text, kept = new_token(Entropy(), "viewer", clock.now(), **options)  # type: ignore[arg-type]
    file.add(kept)
    return text, kept


def test_a_token_is_found_by_its_text_alone(file: TokenFile, clock: SimulatedClock) -> None:
    text, kept = made(file, clock, queues=("mail",), note="ann")

    assert file.find(text) == kept
    for wrong in (text[:-1], text + "0", text.upper(), text.replace("taskharbor_", ""), "", "é", "\ud800"):
        assert file.find(wrong) is None


def test_a_secret_has_256_bits_and_is_kept_as_a_hash_only(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path
) -> None:
    text, _ = made(file, clock)
    secret = text.split("_")[2]

    assert len(bytes.fromhex(secret)) == 32
    assert secret not in (tmp_path / "tokens.json").read_text()
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


def test_an_unknown_id_costs_the_same_comparison_as_a_wrong_secret(
    file: TokenFile, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, _ = made(file, clock)
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def counted(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for tried in (text[:-1] + "x", f"taskharbor_{'0' * 12}_{'0' * 64}", "nonsense", text):
        file.find(tried)

    assert compared == [(64, 64)] * 4


def test_a_token_is_over_at_the_instant_of_its_expiry(file: TokenFile, clock: SimulatedClock) -> None:
    text, _ = made(file, clock, expires_at=clock.now() + timedelta(hours=1))

    clock.advance(timedelta(hours=1) - timedelta(microseconds=1))
    assert file.find(text) is not None
    clock.advance(timedelta(microseconds=1))
    assert file.find(text) is None


def test_another_process_sees_a_revocation_within_five_seconds(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path
) -> None:
    text, kept = made(file, clock)
    server = TokenFile(tmp_path / "tokens.json", clock)
    assert server.find(text) is not None

    assert file.revoke(kept.id)
    clock.advance(timedelta(seconds=5))

    assert server.find(text) is None
    assert not file.revoke(kept.id)


def test_a_broken_file_is_an_error_and_opens_no_door_until_it_is_mended(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path
) -> None:
    text, _ = made(file, clock)
    good = (tmp_path / "tokens.json").read_bytes()
    assert file.find(text) is not None

    (tmp_path / "tokens.json").write_text('{"tokens": [{"id": 1}]}')
    clock.advance(timedelta(seconds=5))
    with pytest.raises(ConfigurationError, match="not readable"):
        file.find(text)
    assert file.find(text) is None
    (tmp_path / "tokens.json").write_bytes(good)
    clock.advance(timedelta(seconds=5))

    assert file.find(text) is not None

"""Tokens: what a file keeps, what opens a door, and what no longer does."""

import hmac
import os
import stat
import threading
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
    with pytest.raises(ConfigurationError, match="is not valid"):
        file.find(text)
    assert file.find(text) is None
    (tmp_path / "tokens.json").write_bytes(good)
    clock.advance(timedelta(seconds=5))

    assert file.find(text) is not None


# ------------------------------------------------------------------ the file itself


def test_updates_at_the_same_time_are_all_kept(tmp_path: Path, clock: SimulatedClock) -> None:
    begin, ids = threading.Barrier(10), list[str]()

    def add() -> None:
        own = TokenFile(tmp_path / "tokens.json", clock)
        _, kept = new_token(Entropy(), "viewer", clock.now())
        ids.append(kept.id)
        begin.wait()
        own.add(kept)

    threads = [threading.Thread(target=add) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(token.id for token in TokenFile(tmp_path / "tokens.json", clock).tokens()) == sorted(ids)
    assert [one.name for one in tmp_path.iterdir()] == ["tokens.json"]


def test_a_draft_that_somebody_laid_out_is_not_taken(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "tokens.json.new").symlink_to(victim)
    made(file, clock)

    assert victim.read_text() == "precious"
    assert not (tmp_path / "tokens.json").is_symlink()


def test_a_link_stays_a_link_and_its_target_is_changed(tmp_path: Path, clock: SimulatedClock) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "tokens.json").symlink_to(tmp_path / "secrets" / "tokens.json")
    text, _ = made(TokenFile(tmp_path / "tokens.json", clock), clock)

    assert (tmp_path / "tokens.json").is_symlink()
    assert TokenFile(tmp_path / "secrets" / "tokens.json", clock).find(text) is not None


@pytest.mark.parametrize("mode", [0o660, 0o606, 0o622])
def test_a_file_that_others_may_write_to_opens_no_door(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path, mode: int
) -> None:
    made(file, clock)
    (tmp_path / "tokens.json").chmod(mode)

    with pytest.raises(ConfigurationError, match="chmod go-w"):
        TokenFile(tmp_path / "tokens.json", clock)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        made(file, clock)


def test_a_folder_that_anybody_may_change_holds_no_token_file(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod o-w"):
        made(file, clock)
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o1777)
    text, _ = made(file, clock)

    assert TokenFile(tmp_path / "tokens.json", clock).find(text) is not None


def test_a_file_or_a_link_of_another_user_opens_no_door(
    file: TokenFile, clock: SimulatedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(file, clock)
    if os.geteuid() == 0:
        os.chown(tmp_path / "tokens.json", 4711, 4711)
        other = "4711"
    else:  # the file is ours: be somebody else
        other = str(os.geteuid())
        monkeypatch.setattr(os, "geteuid", lambda: 4711)

    with pytest.raises(ConfigurationError, match=f"belongs to user {other}"):
        TokenFile(tmp_path / "tokens.json", clock)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_leads_nowhere(file: TokenFile, clock: SimulatedClock, tmp_path: Path) -> None:
    made(file, clock)
    (tmp_path / "link.json").symlink_to(tmp_path / "tokens.json")
    os.lchown(tmp_path / "link.json", 4711, 4711)

    with pytest.raises(ConfigurationError, match="belongs to user 4711"):
        TokenFile(tmp_path / "link.json", clock)


def test_what_is_no_file_is_an_error_and_holds_nobody_up(tmp_path: Path, clock: SimulatedClock) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ConfigurationError, match="is not a regular file"):
            TokenFile(tmp_path / name, clock)

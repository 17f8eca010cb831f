"""Settings: flag > environment > file > default, and where each came from."""

from datetime import timedelta
from pathlib import Path

import pytest

from taskharbor.errors import ConfigurationError
from taskharbor.settings import SETTINGS, load_settings, size

FILE = """
url = "postgresql://ada:secret@db/jobs"

[worker]
concurrency = 4
queues = ["mail", "default"]
lease = "1m"
max_memory = "2GiB"

[profile.prod]
url = "redis://cache"

[profile.prod.worker]
concurrency = 40
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "taskharbor.toml").write_text(FILE)
    return tmp_path


def load(folder: Path, flags=None, profile=None, **environ: str):
    return load_settings(flags, environ=environ, folder=folder, profile=profile)


def test_without_anything_the_defaults_hold(tmp_path):
    settings = load(tmp_path)

    assert settings.values.url == "sqlite:///taskharbor.db"
    assert settings.values.worker.concurrency == 10
    assert set(settings.sources.values()) == {"default"}
    assert settings.file is None


def test_the_file_goes_over_the_defaults(folder):
    settings = load(folder)

    worker = settings.values.worker
    assert (worker.concurrency, worker.queues) == (4, ("mail", "default"))
    assert (worker.lease, worker.max_memory) == (timedelta(minutes=1), 2 * 1024**3)
    assert settings.sources["worker.concurrency"] == f"file {folder / 'taskharbor.toml'}"


def test_the_environment_goes_over_the_file_and_a_flag_over_both(folder):
    settings = load(
        folder, {"worker.concurrency": 8}, TASKHARBOR_WORKER_CONCURRENCY="6", TASKHARBOR_WORKER_LEASE="90s"
    )

    assert settings.values.worker.concurrency == 8
    assert settings.sources["worker.concurrency"] == "flag --concurrency"
    assert settings.values.worker.lease == timedelta(seconds=90)
    assert settings.sources["worker.lease"] == "environment TASKHARBOR_WORKER_LEASE"


def test_a_flag_that_was_not_given_does_not_count(folder):
    assert load(folder, {"worker.concurrency": None}).values.worker.concurrency == 4


@pytest.mark.parametrize("chosen", [{"profile": "prod"}, {"TASKHARBOR_PROFILE": "prod"}])
def test_a_profile_goes_over_the_rest_of_the_file(folder, chosen):
    settings = load(folder, **chosen)

    assert settings.values.url == "redis://cache"
    assert settings.values.worker.concurrency == 40
    assert settings.values.worker.lease == timedelta(minutes=1)
    assert "[profile.prod]" in settings.sources["url"]


def test_an_unknown_profile_lists_those_that_exist(folder):
    with pytest.raises(ConfigurationError, match=r"no \[profile.test\].*known: prod"):
        load(folder, profile="test")


def test_pyproject_serves_when_there_is_no_file_of_its_own(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.taskharbor.worker]\nkind = "gpu"\n')

    assert load(tmp_path).values.worker.kind == "gpu"


def test_a_pyproject_about_something_else_is_left_alone(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.other]\nkind = "gpu"\n')

    assert load(tmp_path).file is None


def test_another_file_can_be_named(tmp_path, folder):
    other = tmp_path / "elsewhere.toml"
    other.write_text('url = "memory://"')

    assert load(folder, TASKHARBOR_CONFIG=str(other)).values.url == "memory://"
    with pytest.raises(ConfigurationError, match=r"TASKHARBOR_CONFIG=.*cannot be read"):
        load(folder, TASKHARBOR_CONFIG=str(tmp_path / "missing.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[worker]\nconcurency = 4",
            "unknown setting 'worker.concurency'; did you mean 'worker.concurrency'",
        ),
        ("[wroker]\nconcurrency = 4", "did you mean 'worker"),
        ("xyzzy = 4", "unknown setting 'xyzzy'; known: app"),
        ("[profile.prod]\nurk = 'x'", r"\[profile.prod\]: unknown setting 'urk'; did you mean 'url'"),
        ("[worker]\nconcurrency = 'many'", r"worker.concurrency = 'many' \(file .*\) must be a whole number"),
        ("[worker]\nlease = 'soon'", "must be a duration like 30s"),
        ("[worker]\nuntil_idle = 'perhaps'", "must be true or false"),
        ("[worker]\nmax_memory = 'lots'", "must be a size like 512MiB"),
        ("[worker]\nqueues = [1]", "must be a list of texts"),
        ("url = 7", "must be a text"),
        ("url = ", "is not valid TOML"),
        ("worker = 7", r"worker is a table: write \[worker\]"),
        ("profile.prod = 7", "must be a table of settings"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_a_hint(tmp_path, text, words):
    (tmp_path / "taskharbor.toml").write_text(text)

    with pytest.raises(ConfigurationError, match=words):
        load(tmp_path)


def test_a_wrong_variable_is_refused_by_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'ten' \(environment TASKHARBOR_WORKER_CONCURRENCY\)"):
        load(tmp_path, TASKHARBOR_WORKER_CONCURRENCY="ten")


def test_an_unknown_flag_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"did you mean 'worker\.kind'"):
        load(tmp_path, {"worker.kin": "gpu"})


def test_variables_that_nobody_knows_are_left_alone(tmp_path):
    assert (
        load(tmp_path, TASKHARBOR_SERVICE_HOST="10.0.0.1", TASKHARBOR_PORT="tcp://x").sources["url"]
        == "default"
    )


def test_an_empty_variable_means_the_default(tmp_path):
    assert load(tmp_path, TASKHARBOR_WORKER_CONCURRENCY="").values.worker.concurrency == 10


def test_a_secret_may_come_in_a_file(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")

    settings = load(tmp_path, TASKHARBOR_TOKEN_FILE=str(tmp_path / "token"))

    assert settings.values.token == "s3cret"
    with pytest.raises(ConfigurationError, match=r"TASKHARBOR_TOKEN_FILE=.*cannot be read"):
        load(tmp_path, TASKHARBOR_TOKEN_FILE=str(tmp_path / "missing"))


def test_what_is_shown_hides_secrets_and_names_every_source(folder):
    shown = {one.name: one for one in load(folder, TASKHARBOR_TOKEN="s3cret").shown()}

    assert shown.keys() == SETTINGS.keys()
    assert shown["token"].value == "***"
    assert shown["url"].value == "postgresql://ada:***@db/jobs"
    assert shown["worker.lease"].value == "1m"
    assert shown["worker.queues"].value == "mail,default"
    assert shown["worker.heartbeat"].value == "-"
    assert shown["worker.kind"].source == "default"
    assert not any("secret" in one.value for one in shown.values())


def test_what_the_file_says_becomes_the_defaults_of_a_commands_flags(folder):
    settings = load(folder, TASKHARBOR_WORKER_LEASE="5s")

    assert settings.of_file("worker") == {
        "concurrency": 4,
        "queues": ("mail", "default"),
        "max_memory": 2 * 1024**3,
    }
    assert settings.of_file() == {"url": "postgresql://ada:secret@db/jobs"}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (0, 0),
        (512, 512),
        ("512", 512),
        ("1k", 1000),
        ("1 KiB", 1024),
        ("1.5GB", 1_500_000_000),
        ("2Mi", 2 * 1024**2),
    ],
)
def test_sizes_are_written_like_people_write_them(text, number):
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1PB", True, -1, None, 1.5])
def test_what_says_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a size like"):
        size(text)


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_yes_is_written_in_many_ways(tmp_path, text):
    assert load(tmp_path, TASKHARBOR_WORKER_UNTIL_IDLE=text).values.worker.until_idle is True


@pytest.mark.parametrize("text", ["0", "False", "no", "off", ""])
def test_and_so_is_no(tmp_path, text):
    assert load(tmp_path, TASKHARBOR_WORKER_UNTIL_IDLE=text).values.worker.until_idle is False


def test_the_page_lists_every_setting_with_its_variable():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "settings.md").read_text("utf-8")

    missing = [
        name for name, setting in SETTINGS.items() if f"| `{name}` | `{setting.variable}` |" not in page
    ]

    assert missing == []


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one,two/main?sentinel_password=hunter2",
        "postgresql://db/jobs?listen_url=postgresql://ada:hunter2@direct/jobs",
        "postgresql://db/jobs?listen_url=postgresql%3A%2F%2Fada%3Ahunter2%40direct%2Fjobs",
        "postgresql://ada:hun/hunter2@db/jobs",
        "https://hunter2@jobs.example.net",
    ],
)
def test_what_is_shown_hides_every_secret_in_a_url(tmp_path, url):
    shown = {one.name: one.value for one in load(tmp_path, TASKHARBOR_URL=url).shown()}

    assert "hunter2" not in str(shown)
    assert "***" in shown["url"]

"""What is secret by its name is hidden, and what only sounds like it stays readable."""

import pytest

from taskharbor.model.secrets import is_secret_name, masked, redacted, secrets_in, without_url_secrets
from tests.unit.growth import assert_linear


def words(text: str) -> list[str]:
    return text.split()


SECRET = words(
    """
    password Password db_password userPassword PASSWORD sslpassword passwd pwd user_pwd userPwd passphrase
    key-passphrase secret client_secret clientSecret AWS_SECRET_ACCESS_KEY secrets token access_token
    accessToken authtoken X-Auth-Token refresh_tokens api_tokens csrf-token token_hash authorization
    Proxy-Authorization api_key apiKey API_KEY APIKey apikey x-api-key credential credentials
    google.credentials cookie Cookie Set-Cookie cookies session user_session session_id sessionId sessionid
    session_key session_cookie jwt user_jwt jwtAssertion auth x_auth basic-auth oauth auth_header auth_code
    private_key privateKey ssh_private_key private_keys access_key accessKeyId access_key_id dsn SENTRY_DSN
    card_number cardNumber otp totp otp_code cvv card_cvc passcode encryption_key signing_key
    sentinel_password
    """
)

PLAIN = words(
    """
    max_tokens maxTokens total_tokens tokens prompt_tokens token_count max_token token_limit tokenizer
    tokenize author authors authority authorize_url authentic auth_method auth_url secretary secretariat
    passenger passport compass session_timeout sessions obsession cards card number key keys keyboard
    public_key primary_key monkey donkey idempotency_key access accessible otpimal opt option pin spin
    description discount dsname user name email private privately api url
    """
)


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_name_is_known_as_one(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_name_is_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_only_texts_are_names() -> None:
    assert not any(map(is_secret_name, (None, 1, b"password", ("password",), "")))


def test_values_under_secret_names_are_hidden_however_deep_they_are() -> None:
    value = {"a": [{"pwd": "x", "max_tokens": 5, "b": {"jwt": {"c": 1}}}], "otp": None, "otp2": 1}

    assert redacted(value) == {
        "a": [{"pwd": "***", "max_tokens": 5, "b": {"jwt": "***"}}],
        "otp": None,
        "otp2": "***",
    }


URLS = {
    "redis+sentinel://h/m?sentinel_password=s3cret&db=1": "redis+sentinel://h/m?sentinel_password=***&db=1",
    "postgresql://u:s3cret@h/d?listen_url=postgresql://v:s3cret@i/d": (
        "postgresql://u:***@h/d?listen_url=postgresql://v:***@i/d"
    ),
    "postgresql://h/d?listen_url=postgresql%3A%2F%2Fv%3As3cret%40i%2Fd%3Fsslpassword%3Ds3cret&schema=x": (
        "postgresql://h/d?listen_url=postgresql://v:***@i/d?sslpassword=***&schema=x"
    ),
    "postgresql://u:s3c/ret@h/d": "postgresql://u:***@h/d",
    "https://s3cret@h/d": "https://***@h/d",
    "https://me:s3cret@h/d?ca=x": "https://***@h/d?ca=x",
    "postgresql://h/d?SSLPassword=s3cret": "postgresql://h/d?SSLPassword=***",
    "sqlite:////a:b@c.db?durability=normal": "sqlite:////a:b@c.db?durability=normal",
    "postgresql://me@h/d?application_name=token": "postgresql://me@h/d?application_name=token",
    "memory://": "memory://",
}


@pytest.mark.parametrize("url", URLS)
def test_no_secret_of_a_url_is_shown(url: str) -> None:
    assert masked(url) == URLS[url]


@pytest.mark.parametrize("url", [url for url in URLS if "s3cret" in url])
def test_the_secrets_of_a_url_are_found_to_be_hidden_elsewhere(url: str) -> None:
    assert set(secrets_in(url)) >= {"s3cret"}
    assert "s3cret" not in without_url_secrets(f"could not reach {url} today")


def deep(levels: int) -> str:
    url = "postgresql://v:s3cret@h/d"
    for _ in range(levels):
        url = "postgresql://h/d?listen_url=" + url.replace("%", "%25").replace(":", "%3A").replace("?", "%3F")
    return url


def test_a_url_within_a_url_without_end_takes_neither_time_nor_stack() -> None:
    assert "s3cret" not in without_url_secrets(deep(60))
    assert_linear(without_url_secrets, lambda n: "?a=%3A//" * n, 512)
    assert_linear(is_secret_name, lambda n: "A" * n, 512)

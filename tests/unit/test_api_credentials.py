"""What counts as a credential in plain text, by its name and by its value."""

from __future__ import annotations

import pytest
from nhx_evals_sdk.agent_eval.runtimes.provenance import is_credential_value

from nhx_gym_operator.api.credentials import is_credential

NAMES = """
API_KEY OPENAI_API_KEY openai_api_key judgeApiKey APIKEYS API_KEY_2 AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID HF_TOKEN
TOKEN accessToken CLIENT_SECRET SECRET_KEY DB_PASSWORD PGPASSWORD MYSQL_PWD GITHUB_PAT SSH_PRIVATE_KEY PASSPHRASE
PROXY_AUTHORIZATION GOOGLE_APPLICATION_CREDENTIALS SIGNING_KEY
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_that_ends_like_a_credentials_is_one(name: str) -> None:
    assert is_credential(name, "anything")
    assert not is_credential(name, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4096"),
        ("STOP_TOKEN", "</s>"),
        ("TOKENIZER", "org/tokenizer-7b"),
        ("TOKEN_BUDGET_FILE", "/data/budget"),
        ("CACHE", "/tmp/hf_cache"),
        ("SORT_KEY", "name"),
        ("MODE", "task-sk-learn"),
        ("URL", "https://models.example.org:8080/v1"),
        ("PATTERN", "://"),
        ("REGION", "ASIA"),
        ("COMPAT", "0.80"),
    ],
)
def test_what_only_sounds_like_one_is_none(name: str, value: str) -> None:
    assert not is_credential(name, value)


ISSUED = [
    "sk-proj-abcdefghijklmnop",
    "sk-abc123",
    "nvapi-0123456789abcdefghij",
    "hf_abcdefghijklmnopqrst",
    "ghp_abcdefghijklmnopqrst",
    "github_pat_11ABCDEFG0123456789",
    "gho_abcdefghijklmnopqrst",
    "glpat-abcdefghijklmnopqrst",
    "xoxb-123456789012-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza" + "a" * 35,
    "Bearer sk-abc123",
    "--key=nvapi-0123456789abcdefghij",
    "-----BEGIN RSA PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJuYW1lIn0.c2ln",
    "postgres://user:password@db.example.org/x",
]


@pytest.mark.parametrize("value", ISSUED)
def test_a_value_as_keys_are_issued_is_one_under_any_name(value: str) -> None:
    assert is_credential("SETTING", value)


@pytest.mark.parametrize("value", [value for value in ISSUED if is_credential_value(value)])
def test_nothing_that_the_sdk_keeps_out_of_a_bundle_passes_here(value: str) -> None:
    assert is_credential("SETTING", value)

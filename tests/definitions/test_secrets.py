from __future__ import annotations

import pytest

from builder.definitions import secrets


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "OPENAI_API_KEY", "api_key", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DBPASSWORD"),
        *("MY_PASSWORD", "HFTOKEN", "GITHUB_PAT", "BASIC_AUTH", "GOOGLE_CREDENTIALS", "WANDB_APIKEY"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert secrets.looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "NCCL_DEBUG", "PATH", "PYTHONPATH", "KEYBOARD", "AUTHOR"),
        *("MONKEY", "VLLM_USE_V1", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_names_of_anything_else(name: str) -> None:
    assert not secrets.looks_secret(name, "1")


@pytest.mark.parametrize(
    "value",
    [
        *("hf_abcdefghijkl", "sk-abcdefgh1234", "ghp_abcdefgh12345", "nvapi-abcdefgh1", "AKIAABCDEFGHIJKL"),
        *("https://ann:pw@proxy:3128", "Bearer abc", "eyJhbGciOiJI.eyJzdWIi.x"),
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_values_that_are_secrets_under_any_name(value: str) -> None:
    assert secrets.looks_secret("ANYTHING", value)


@pytest.mark.parametrize(
    "value", ["", "1", "expandable_segments:True", "http://proxy:3128", "/srv/models", "skip", "a b"]
)
def test_values_that_are_none(value: str) -> None:
    assert not secrets.looks_secret("ANYTHING", value)

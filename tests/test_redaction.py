"""Secrets are distinguished from other values, and never shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from builder.base import redaction


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "OPENAI_API_KEY", "api_key", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "DBPASSWORD"),
        *("MY_PASSWORD", "HFTOKEN", "GITHUB_PAT", "BASIC_AUTH", "GOOGLE_CREDENTIALS", "WANDB_APIKEY"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert redaction.looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "NCCL_DEBUG", "PATH", "PYTHONPATH", "KEYBOARD", "AUTHOR"),
        *("MONKEY", "VLLM_USE_V1", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_names_of_anything_else(name: str) -> None:
    assert not redaction.looks_secret(name, "1")


@pytest.mark.parametrize(
    "value",
    [
        *("hf_abcdefghijkl", "sk-abcdefgh1234", "ghp_abcdefgh12345", "nvapi-abcdefgh1", "AKIAABCDEFGHIJKL"),
        *("https://ann:pw@proxy:3128", "Bearer abc", "eyJhbGciOiJI.eyJzdWIi.x"),
        "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_values_that_are_secrets_under_any_name(value: str) -> None:
    assert redaction.looks_secret("ANYTHING", value)


@pytest.mark.parametrize(
    "value", ["", "1", "expandable_segments:True", "http://proxy:3128", "/srv/models", "skip", "a b"]
)
def test_values_that_are_none(value: str) -> None:
    assert not redaction.looks_secret("ANYTHING", value)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts secrets into the environment and the arguments of this process."""
    monkeypatch.setattr(
        "os.environ",
        {
            "HF_TOKEN": "hf_plantedtoken1",
            "https_proxy": "http://ann:pl@nted2/x@proxy:3128".replace("pl@nted2/x", "pl%40nted2%2Fx"),
            "PROXY_WITHOUT_SCHEME": "ann:planted3@proxy:3128",
            "PIP_EXTRA_INDEX_URL": "https://a:planted4@one/simple https://b:planted5@two/simple",
            "DEPLOY_KEY": "-----BEGIN KEY-----\nplantedline6\n-----END KEY-----",
            "API_KEY": "short",
            "SSH_AUTH": "/run/user/1000/agent",
            "QUOTED_PASSWORD": 'planted"7\\',
            "HOME": "/home/ann",
        },
    )
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "builder",
            "run",
            "chat",
            "--env",
            "WEB_TOKEN=plantedtoken8",
            "-e",
            "A=harmless1",
            "--env=B_TOKEN=plantedtoken9",
            "-eC_TOKEN=plantedtoken10",
            "--",
            "--api-key",
            "plantedtoken11",
        ],
    )
    redaction._secret.cache_clear()
    yield
    redaction._secret.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bearer hf_plantedtoken1!", "Bearer ***!"),
        ("GET http://ann:pl%40nted2%2Fx@proxy:3128/", "GET http://***@proxy:3128/"),
        ("login ann pl@nted2/x", "login ann ***"),
        ("Proxy-Authorization: Basic YW5uOnBsQG50ZWQyL3g=", "Proxy-Authorization: Basic ***"),
        ("planted3 planted4 planted5 plantedtoken8", "*** *** *** ***"),
        ("plantedtoken9 plantedtoken10 plantedtoken11 chat", "*** *** *** chat"),
        ("  plantedline6\n", "  ***\n"),
        ('{"a": "planted\\"7\\\\"}', '{"a": "***"}'),
        ("short /run/user/1000/agent /home/ann harmless1", "short /run/user/1000/agent /home/ann harmless1"),
        ("https://token@host/a.git ssh://git@host/b git@host:c", "https://***@host/a.git ssh://git@host/b git@host:c"),
        ("ssh://git:pw@host/b ann@example.org", "ssh://***@host/b ann@example.org"),
        ("https://host/@scope/package http://a/b@c", "https://host/@scope/package http://a/b@c"),
    ],
)
def test_they_are_shown_in_no_spelling(planted: None, text: str, expected: str) -> None:
    assert redaction.redacted(text) == expected
    assert redaction.redacted(expected) == expected


# Text for other people contains no secrets, and no names of users, machines or addresses.

NAMES = {"kitchen-pc": "MACHINE", "/srv/alice/project": "PROJECT", "alice": "USER", "": "NOTHING"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loaded /home/alice/models/x and /Users/bob/y", "loaded /home/USER/models/x and /Users/USER/y"),
        ("/srv/alice/project/recipes/m.yaml", "PROJECT/recipes/m.yaml"),
        ("kitchen-pc:281:300 [0] NCCL WARN x", "MACHINE:281:300 [0] NCCL WARN x"),
        ("office:281:300 [0] NCCL INFO NET/IB", "MACHINE:281:300 [0] NCCL INFO NET/IB"),
        ("rank 0 at 192.168.177.11:29501 and 10.0.0.7", "rank 0 at ADDRESS:29501 and ADDRESS"),
        ("(RayWorkerWrapper pid=7, ip=172.17.139.128)", "(RayWorkerWrapper pid=7, ip=ADDRESS)"),
        ("tcp://spark-a1b2:29501", "tcp://MACHINE:29501"),
        ("client socket cannot connect to [office.lan]:29501", "client socket cannot connect to [MACHINE]:29501"),
        ("GPU-0a1b2c3d-0000-1111-2222-333344445555", "GPU-ID"),
        ("4c:bb:47:12:34:56 and fe80::4ebb:47ff:fe12:3456", "MAC and ADDRESS"),
        ("written by alice <alice.b@example.org>", "written by USER <MAIL>"),
        ("login hf_abcdefghijkl --api-key swordfish1 HF_TOKEN=abcdefgh1", "login *** --api-key *** HF_TOKEN=***"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer ***"),
        ("http://203.0.113.9:8000/v1", "http://ADDRESS:8000/v1"),
    ],
)
def test_what_names_somebody_is_replaced(text: str, shown: str) -> None:
    assert redaction.anonymous(text, NAMES) == shown


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-cudnn-cu13 9.20.0.48, torch 2.13.0+cu130, vLLM 0.25.2.1, driver 580.173.02",
        "VBIOS 9A.0B.25.00.00, BIOS 5.36_0ACUM027, firmware 28.45.4028",
        "http://127.0.0.1:8000/v1 and tcp://127.0.0.1:29501 and 0.0.0.0:8000",
        "max_num_batched_tokens=8192, bos_token=None, num_speculative_tokens=3, tokenizer='Org/M'",
        "2026-09-13 10:00:00 INFO 09-13 10:00:00 [core.py:109] 12:34:56",
        'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 1000, in run',
        "c10::DistBackendError std::runtime_error at::native::foo",
        "Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN'].",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "variables: HF_HUB_OFFLINE=1 HF_HUB_ENABLE_HF_TRANSFER=0",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert redaction.anonymous(text, NAMES) == text

"""Environment variables whose values are never written down: those that look like a secret."""

from __future__ import annotations

import re

_WORDS = frozenset(
    {"AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT", "PW", "SECRET", "TOKEN"}
)
# Written without a mark between the words: HFTOKEN, DBPASSWORD.
_ENDINGS = ("APIKEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
# Tokens of Hugging Face, OpenAI, GitHub, GitLab, NVIDIA, AWS and Slack, a JSON web token, and an address with a login.
_VALUE = re.compile(
    r"hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{8,}|github_pat_\w+|glpat-\S{8,}|nvapi-\S{8,}|AKIA[0-9A-Z]{12,}|xox[a-z]-\S+"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(Bearer|Basic) \S+|.*://[^/\s:@]*:[^/\s@]+@.*|.*-----BEGIN .*PRIVATE KEY-----.*",
    re.DOTALL,
)


def looks_secret(name: str, value: str = "") -> bool:
    """True if a variable of this name, or this value, is likely a secret. ``TOKENIZERS_PARALLELISM`` is none."""
    upper = name.upper()
    return bool(_WORDS & set(upper.split("_"))) or upper.endswith(_ENDINGS) or bool(_VALUE.fullmatch(value))

"""Secrets are never printed or stored: variables that look like secrets, and logins in addresses.

Other programs and build steps may print the secrets that they were given, so `redacted` is applied wherever such text
is shown or stored. The patterns here are text: `re` compiles and caches a pattern when it is first used.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

_WORDS = frozenset(
    {"AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT", "PW", "SECRET", "TOKEN"}
)
# Names without a separator between the words: HFTOKEN, DBPASSWORD.
_ENDINGS = ("APIKEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
# Tokens of Hugging Face, OpenAI, GitHub, GitLab, NVIDIA, AWS and Slack, and a JSON web token.
_FORMS = (
    r"hf_\w{8,}|sk-[\w-]{8,}|gh[pousr]_\w{8,}|github_pat_\w+|glpat-[\w-]{8,}|nvapi-[\w-]{8,}|AKIA[0-9A-Z]{12,}"
    r"|xox[a-z]-[\w-]+|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
)
_VALUE = rf"(?s){_FORMS}|(Bearer|Basic) \S+|.*://[^/\s:@]*:[^/\s@]+@.*|.*-----BEGIN .*PRIVATE KEY-----.*"

_SHOWN = "***"
# Secrets that are neither in the environment nor in the arguments of this process.
_LEARNED: set[str] = set()
# Any text may contain a shorter one by chance.
_SHORTEST_VALUE, _SHORTEST_PASSWORD = 8, 5
_LOGIN = r"(?:^|://)(?P<user>[^\s/:@]*):(?P<password>[^\s/@]+)@"
# The user in an ssh address is no secret; the user in a web address may be a token.
_ADDRESS = r"(?i)(?P<scheme>\bhttps?://)[^\s/@'\"<>]+@|(?P<other>://)[^\s/@:'\"<>]*:[^\s/@'\"<>]+@"


def looks_secret(name: str, value: str = "") -> bool:
    """True if a variable of this name, or this value, is likely a secret; ``TOKENIZERS_PARALLELISM`` is not."""
    upper = name.upper()
    return bool(_WORDS & set(upper.split("_"))) or upper.endswith(_ENDINGS) or bool(re.fullmatch(_VALUE, value))


def learn(secret: str) -> None:
    """Remembers a secret for `redacted`. A text that is too short for a password is ignored: any text may contain it by
    chance."""
    if len(secret) >= _SHORTEST_PASSWORD and secret not in _LEARNED:
        _LEARNED.add(secret)
        _secret.cache_clear()


def redacted(text: str) -> str:
    """``text`` with ``***`` in place of secrets: from the environment, the arguments of this process, and `learn`, in
    every spelling, and the login in any address."""
    secret = _secret()
    if secret:
        text = secret.sub(_SHOWN, text)
    if "@" in text:
        text = re.sub(_ADDRESS, rf"\g<scheme>\g<other>{_SHOWN}@", text)
    return text


@functools.cache
def _secret() -> re.Pattern[str] | None:
    pairs = [*os.environ.items(), *_assigned(sys.argv[1:])]
    spellings = {spelling for name, value in pairs for spelling in _spellings(name, value)}
    spellings |= {spelling for secret in _LEARNED for spelling in _written(secret)}
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if spellings else None


def _assigned(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names that arguments set, with their values: ``NAME=VALUE``, ``--env=NAME=VALUE``, ``--api-key VALUE``."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        name, _, value = word.partition("=")
        yield name.lstrip("-").replace("-", "_"), value
        if name.startswith("-"):
            yield value.partition("=")[::2]
        if before.startswith("-"):
            yield before.lstrip("-").replace("-", "_"), word


def _spellings(name: str, value: str) -> Iterator[str]:
    """The spellings of the secrets in a variable: plain, quoted for an address or for JSON, and as a login header."""
    logins = list(re.finditer(_LOGIN, value)) if "@" in value else []
    is_secret = not logins and len(value) >= _SHORTEST_VALUE and not value.startswith("/") and looks_secret(name, value)
    if not logins and not is_secret:
        return
    from base64 import b64encode
    from urllib.parse import unquote

    values = [password for login in logins if len(password := unquote(login["password"])) >= _SHORTEST_PASSWORD]
    values += [line for line in value.splitlines() if len(line) >= _SHORTEST_VALUE] if is_secret else []
    for secret in values:
        yield from _written(secret)
    for login in logins:
        yield b64encode(f"{unquote(login['user'])}:{unquote(login['password'])}".encode()).decode()


def _written(secret: str) -> Iterator[str]:
    """A secret, plain and quoted for an address or for JSON."""
    from urllib.parse import quote

    in_json = secret.replace("\\", "\\\\").replace('"', '\\"')
    yield from (secret, quote(secret), quote(secret, safe=""), in_json)


# Text for others: without the names of users and machines, and without addresses.

_HOME = r"(?<![\w.])/(home|Users)/[^/\s'\":,;()\[\]]+"
# A version may also have four parts, so the context decides whether it is an IP address.
_PRIVATE = (
    r"(?<![\w.])(?:10\.\d{1,3}|192\.168|169\.254|172\.(?:1[6-9]|2\d|3[01])|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7]))"
    r"\.\d{1,3}\.\d{1,3}(?!\.?\d)"
)
_PUBLIC = (
    r"(?i)(?P<before>://|@|\b(?:ip|host|addr|address|master|peer|from|to)\w{0,12}['\"]?[ =:(]{1,3}['\"]?)"
    r"\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)"
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?=:\d{2,5}\b)"
)
_LOCAL = r"127\.0\.|0\.0\.0\.0"
_IPV6 = r"(?<![\w:.])(?=[\da-fA-F:]*::|(?:[\da-fA-F]{1,4}:){7})(?:[\da-fA-F]{1,4}:{1,2}){2,7}[\da-fA-F]{1,4}(?![\w:])"
_MAC = r"\b(?:[\da-fA-F]{2}[:-]){5,7}[\da-fA-F]{2}\b"
_DEVICE = r"\b(GPU|MIG)-[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b"
_MAIL = r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"
# The factory names of DGX Sparks and similar machines.
_FACTORY = r"(?i)\b(?:spark|gx10|promaxgb10|dgx)-[\da-f]{4}\b(?:\.local)?"
# How NCCL begins its lines, and how PyTorch and vLLM name another machine.
_HOST = (
    r"(?m)^[\w.-]+(?=:\d+:\d+ \[)|(?P<at>connect(?:ed|ing)? to \[?|\b(?:tcp|ssh|zmq)://(?:[\w.-]+@)?)"
    r"(?!127\.|localhost|0\.0|\[?::1|ADDRESS|MACHINE)[\w.-]*[A-Za-z][\w.-]*"
)
# Tokens, and the values of names that look secret.
_TOKENS = (
    rf"(?i)\b(?-i:{_FORMS})"
    r"|(?P<kept>\b(?:Bearer|Basic) |(?:api[_-]?key|(?<!_)token|password|passwd|secret)['\"]?\s*[=:]\s*['\"\[]{0,2}"
    r"|(?-i:\b[A-Z][A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD)=)['\"]?|--api[_-]key[ =]['\"]?)"
    r"(?!None\b|\d+\b|True\b|False\b|\*)[^\s'\",;\])}]{6,}"
)


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """``text`` without secrets, tokens of any kind, home folders, addresses and device ids. ``names`` maps more texts,
    such as the machine's name, to their replacements."""
    text = re.sub(_TOKENS, lambda match: f"{match['kept'] or ''}{_SHOWN}", redacted(text))
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", names[name], text)
    text = re.sub(_HOST, lambda match: f"{match['at'] or ''}MACHINE", text)
    text = re.sub(_DEVICE, r"\1-ID", re.sub(_HOME, r"/\1/USER", text))
    text = re.sub(_MAC, "MAC", re.sub(_MAIL, "MAIL", text))
    text = re.sub(_PRIVATE, "ADDRESS", re.sub(_FACTORY, "MACHINE", text))
    text = re.sub(
        _PUBLIC, lambda match: match[0] if re.search(_LOCAL, match[0]) else f"{match['before'] or ''}ADDRESS", text
    )
    return re.sub(_IPV6, "ADDRESS", text)

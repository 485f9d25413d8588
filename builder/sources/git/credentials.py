"""Credentials in the address of a repository (``https://user:token@host/…``): only git gets them.

They are passed in the environment of each command, through a credential helper that answers for this one host only. So
they appear in no configuration file and in no argument that ``ps`` shows, and a redirect to another host does not get
them.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field

_AUTHORITY = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<who>[^/?#]*)@(?P<rest>[^@/]*.*)", re.IGNORECASE | re.DOTALL
)
# git runs a helper that starts with `!` in a shell. It reads the values from the environment, so nothing needs quoting.
_HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$BUILDER_GIT_USER" "$BUILDER_GIT_SECRET"; }; f'
)


@dataclass(frozen=True)
class Address:
    """A repository's address. ``url`` has no credentials, as it goes into locks, messages and configuration."""

    url: str
    user: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)


def split(url: str) -> Address:
    """Splits the credentials off an address.

    The user of an ssh address stays (``ssh://git@host/…``, ``git@host:…``): it belongs to the address, and ssh takes no
    password from there. A lone ``https://TOKEN@host/…`` is a token for any user, as GitHub and GitLab accept it.
    """
    from urllib.parse import unquote

    parts = _AUTHORITY.fullmatch(url)
    if not parts:
        return Address(url)
    scheme, userinfo, rest = parts["scheme"], parts["who"], parts["rest"]
    user, _, secret = userinfo.partition(":")
    if scheme.lower() not in ("http", "https"):
        return Address(f"{scheme}://{user}@{rest}", secret=unquote(secret))
    if not secret:
        user, secret = "x-access-token", user
    return Address(f"{scheme}://{rest}", unquote(user), unquote(secret))


def configuration(address: Address) -> tuple[tuple[str, str], ...]:
    """Returns the settings that make git ask this helper, and no other one, when the address requires a login."""
    if not address.user:
        return ()
    scheme, _, rest = address.url.partition("://")
    key = f"credential.{scheme}://{rest.partition('/')[0]}.helper"
    return ((key, ""), (key, _HELPER))


def environment(address: Address) -> dict[str, str]:
    """Returns the environment variables that the helper reads its answer from."""
    return {"BUILDER_GIT_USER": address.user, "BUILDER_GIT_SECRET": address.secret} if address.user else {}


def scrub(text: str, address: Address) -> str:
    """Replaces every spelling of the secret in ``text`` with ``***``, as a server may repeat what it was sent."""
    from urllib.parse import quote

    if not address.secret:
        return text
    login = base64.b64encode(f"{address.user}:{address.secret}".encode()).decode()
    for spelling in {login, address.secret, quote(address.secret), quote(address.secret, safe="")}:
        text = text.replace(spelling, "***")
    return text

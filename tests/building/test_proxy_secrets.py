"""A proxy's password is a secret of each step, and no build argument."""

from __future__ import annotations

import pytest

from builder.building import bake

MOUNTS = "--mount=type=secret,id=P,env=P --mount=type=secret,id=P,env=p "
DOCKERFILE = """\
# RUN comment
ARG A=1
FROM base AS one
RUN echo one
  run --mount=type=cache,target=/x \\
    # RUN a comment in between

    RUN=two echo \\
    RUN three
RUN <<'EOF' cat <<-"END" > /x
RUN not an instruction
EOF
RUN neither
\tEND
RUN ["list"]
COPY <<EOF /file
RUN content
EOF
RUN echo $((1<<A)) <<EOF2
RUN no
EOF2
SHELL ["RUN"]
RUN \\
  last"""


def test_each_step_gets_them_and_nothing_else_changes() -> None:
    mounted = bake.mounted(DOCKERFILE, ["P"])
    lines = mounted.split("\n")
    assert mounted.replace(MOUNTS, "") == DOCKERFILE
    assert [number for number, line in enumerate(lines, start=1) if MOUNTS in line] == [4, 5, 10, 15, 19, 23]
    assert lines[4].startswith(f"  run {MOUNTS}--mount=type=cache")


@pytest.mark.parametrize(
    ("address", "is_secret"),
    [
        ("http://proxy:3128", False),
        ("proxy:3128", False),
        ("10.0.0.0/8,.lan", False),
        ("http://ann:pw@proxy:3128", True),
        ("ann:pw@proxy:3128", True),
        ("http://token@proxy", True),
        ("socks5h://ann:p%40w@proxy", True),
    ],
)
def test_what_has_a_login_is_a_secret(address: str, is_secret: bool) -> None:
    arguments, logins = bake.split([("HTTPS_PROXY", address)])
    assert (arguments, logins) == (({}, {"HTTPS_PROXY": address}) if is_secret else ({"HTTPS_PROXY": address}, {}))

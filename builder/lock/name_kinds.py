"""The kinds of names in images.lock. They become folders, arguments and lines of Dockerfiles: whoever wrote the file,
none of them leads to another folder, begins like an option, or holds a line break."""

from __future__ import annotations

from builder import name_patterns
from builder.lock.value_kinds import ValueKind, WrongError, matching

_PART = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = rf"(?:localhost|{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?=:))(?::[0-9]{{1,5}})?"

REPOSITORY = matching(
    # https://github.com/distribution/reference/blob/main/regexp.go; shorter, as it is part of a file's name.
    rf"(?=.{{1,200}}$)(?:{_HOST}/)?{_PART}(?:/{_PART})*",
    "a repository's name such as `vllm-node-tf5`",
    name="repository_name",
)
DEFINITION = matching(
    name_patterns.DEFINITION, "a definition's name, which is a folder's", name="definition_name", scalar=True
)
PLATFORM = matching("[a-z0-9]+(?:/[a-z0-9][a-z0-9_.-]*){1,2}", "a platform such as `linux/arm64`", name="platform")
PART = matching("[A-Za-z0-9][A-Za-z0-9._+-]*", "a name of letters, digits and . _ + -", name="part_name")
INSTANCE = matching("[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a buildx instance", name="instance", scalar=True)
COMMIT_START = matching("[0-9a-f]{4,40}", "the first digits of a commit, or all 40", name="commit_start")
REFERENCE = matching(
    "[A-Za-z0-9][A-Za-z0-9._:/@+-]*",
    "an image as engines name it, such as `debian:bookworm-slim`",
    name="reference",
    scalar=True,
)
VERSION = matching("[A-Za-z0-9][A-Za-z0-9.!+_~-]*", "a version such as `0.32.0+cpu`", name="version_text", scalar=True)
TOKEN = matching("[A-Za-z0-9][A-Za-z0-9:._+-]*", "a digest such as `sha256:` and hex digits", name="token", scalar=True)
MOMENT = matching("(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[0-9A-Za-z:.+-]*)?", "a time, or nothing", name="moment")
LINE = matching(r"(?![-\s])[^\x00-\x1f\x7f]+", "one line that is no option", name="line", scalar=True)
ADDRESS = matching(
    r"(?:https?|ssh|git|file)://[^\s\x00-\x1f\x7f'\"\\$`#]+",
    "the address of a git repository, such as `https://host/owner/repository.git`",
    name="address",
)
REF = matching("[A-Za-z0-9][A-Za-z0-9._/+-]*", "a branch, tag or commit", name="ref", scalar=True)
REVISION = matching(
    r"(?![-/])(?!.*\.\.)[^\s\x00-\x20\x7f]+", "a branch, tag or commit of a model", name="revision", scalar=True
)
RECIPE = matching(
    name_patterns.RECIPE_FILE,
    "the path of a recipe in the project, such as `recipes/chat.yaml`",
    name="recipe_file",
    scalar=True,
)
MODEL = matching(
    r"(?!(?:.*/)?\.\.(?:/|$))"
    r"(?:[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*(?::[A-Za-z][A-Za-z0-9_+-]*)?)?|(?:/|~/|\./)[^\x00-\x1f\x7f]+)",
    "a model of the Hub such as `Qwen/Qwen3-0.6B`, or the path of a folder",
    name="model_id",
)


def is_a(kind: ValueKind, text: str) -> bool:
    """True if ``text`` is of this kind."""
    try:
        kind.read(text)
    except WrongError:
        return False
    return True


def or_nothing(kind: ValueKind) -> ValueKind:
    """The same kind, or ``null`` as None."""
    return ValueKind(
        lambda data: None if data is None else kind.read(data),
        lambda definitions: {"anyOf": [kind.schema(definitions), {"type": "null"}]},
    )

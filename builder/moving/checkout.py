"""A checkout of spark-vllm-docker: its recipes and mods, its .env, and the origin of its files.

.env is read, not run. A value that is not plain text is reported as a problem."""

from __future__ import annotations

import hashlib
import ipaddress
import posixpath
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from builder.base import files, redaction, words
from builder.base.errors import BuilderError, Location, Problem, UsageError
from builder.base.values import dataclass, field
from builder.definitions import cluster, configuration, container, mod, recipe
from builder.definitions.fields import LARGEST_TEXT, env_text
from builder.engine import images
from builder.lock import lock_file
from builder.moving import copies
from builder.moving.copies import DEFAULT_BRANCH, MOD_FILES, Origin, PlannedCopy
from builder.numbers import claims
from builder.sources import git, mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.definitions.configuration import Node
    from builder.definitions.recipe import Recipe
    from builder.numbers.workspace import Workspace


SCRIPTS = ("build-and-copy.sh", "launch-cluster.sh", "run-recipe.sh", "run-recipe.py", "hf-download.sh")
ENV_FILE = ".env"


@dataclass(frozen=True)
class Checkout:
    """A checkout at ``root``: the paths of its recipes and mods by name. A mod is a folder or a zip file."""

    root: Path
    recipes: Mapping[str, Path]
    mods: Mapping[str, Path]

    def shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def find_checkout(folder: Path) -> Checkout:
    """Reads the checkout in ``folder``. Raises UsageError if the folder is not a checkout."""
    root = folder.expanduser().resolve()
    if not any((root / name).exists() for name in ("recipes", "mods", *SCRIPTS, ENV_FILE)):
        message = f"{folder} is not a checkout of spark-vllm-docker: it has no recipes/, mods/, .env or scripts"
        raise UsageError(message, hint="name the folder that contains launch-cluster.sh and recipes/")
    recipes = recipe.recipe_files(root / "recipes")
    return Checkout(
        root,
        {path.relative_to(root / "recipes").with_suffix("").as_posix(): path for path in recipes},
        {path.name.removesuffix(".zip"): path for path in sorted((root / "mods").glob("[!.]*")) if _is_mod(path)},
    )


def choose_checkout(checkout: Checkout, texts: Sequence[str]) -> tuple[str, ...]:
    """The names of the recipes in ``texts``; all recipes without texts. A text is a name or a path, with or without
    suffix, as in spark-vllm-docker's launcher. Raises UsageError for an unknown or ambiguous recipe."""
    return tuple(dict.fromkeys(_choose_one(checkout, text) for text in texts)) or tuple(checkout.recipes)


def _choose_one(checkout: Checkout, text: str) -> str:
    path = Path(text)
    if path.is_absolute() and path.resolve().is_relative_to(checkout.root):
        path = path.resolve().relative_to(checkout.root)
    bare = path.with_suffix("") if path.suffix in recipe.SUFFIXES else path
    name = bare.as_posix().removeprefix("recipes/")
    matching = [name] if name in checkout.recipes else [each for each in checkout.recipes if each.endswith(f"/{name}")]
    if len(matching) > 1:
        raise UsageError(f"`{text}` names several recipes: {', '.join(matching)}", hint="name one with its folder")
    if not matching:
        hint = words.did_you_mean(name, checkout.recipes) or "without names, the command takes all recipes"
        raise UsageError(f"{checkout.root} has no recipe `{text}`", hint=hint)
    return matching[0]


def mod_at(checkout: Checkout, entry: str) -> Path | None:
    """The folder or zip file of a recipe's mod. ``entry`` is a path in the checkout, or a name in ``mods/``. None if it
    is missing, or outside the checkout."""
    for path in (checkout.root / entry, checkout.root / "mods" / entry):
        real = path.resolve()
        if real.is_relative_to(checkout.root) and real != checkout.root and _is_mod(path):
            return path
    return checkout.mods.get(mod.name_of(entry))


def read_mod(checkout: Checkout, path: Path) -> tuple[mod.PlainFile, ...]:
    """The files of a mod, sorted by path. Raises FileProblemsError if one is not a plain file, or too large."""
    shown = checkout.shown(path)
    if not path.is_file():
        return mod.read_plain_files(path, shown)
    contents = mod.read_zip(path, shown)
    described = [] if contents.yaml is None else [mod.PlainFile(mod.DESCRIPTION, False, contents.yaml.encode())]
    return tuple(sorted([*contents.files, *described], key=lambda file: file.path))


def _is_mod(path: Path) -> bool:
    return any((path / name).is_file() for name in MOD_FILES) or (path.suffix == ".zip" and path.is_file())


# Reads ``.env`` as bash reads plain assignments: with optional quotes, ``export`` and comments.

# Unlike bash, spark-vllm-docker's launcher allows blanks around the sign, and in a value without quotes. It keeps the
# quotes of JSON.
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)", re.ASCII)
# bash would change any other value, such as one with a variable or an escape. The pattern of a value without quotes is
# possessive, so that a line with many blanks takes no longer.
_PLAIN = re.compile(
    r"""(?: '(?P<literal>[^']*)' | "(?P<quoted>[^"\\$`]*)" | (?P<json>[{\[](?:[^\s\\$`]|\s++(?!\#))*[}\]])
    | (?P<bare>(?:[^\s'"\\$`]|\s++(?!\#|\Z))*+) )
    (?:\s+\#.*)? \s*""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class EnvFile:
    """The values by variable, which may be secrets, and the problems of lines without a usable assignment."""

    values: dict[str, str] = field(repr=False)
    problems: tuple[Problem, ...] = ()


def parse_env_file(text: str, file: str) -> EnvFile:
    """Parses the text of the file; messages name it ``file``. If a name is repeated, the last value counts."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        problem = "not an assignment NAME=VALUE: left out"
        if match := _ASSIGNMENT.fullmatch(line):
            name = match["name"]
            problem = f"{name} is already set in line {lines[name]}: the last value counts" if name in lines else ""
            if plain := _PLAIN.fullmatch(match["value"]):
                values[name], lines[name] = plain[plain.lastgroup or "bare"], number
            else:
                problem = f"the value of {name} is neither plain nor in one pair of quotes: left out"
        if problem:
            problems.append(Problem(Location(file, number), problem))
    return EnvFile(values, tuple(problems))


# The .env of a checkout becomes settings in builder.yaml. Keys without an equivalent there are reported.

_LOGIN = re.compile(r"(?:[^\s/@:,]+@)?[a-zA-Z0-9.-]+")
_DISCOVERS = "not needed: `builder nodes discover` asks each machine for its own"
_NOT_HERE = {
    "CONTAINER_NAME": "not needed: each container is named after its recipe, so that several can serve at once",
    "MASTER_PORT": f"not needed: nodes use port {cluster.MASTER_PORT} of the first node, or `-- --master-port N`",
    "COPY_HOSTS": "not needed: `builder copy IMAGE:N NODE…` copies; `engine: ssh://HOST` makes a machine a node",
    "LOCAL_IP": "not needed: builder finds this machine among the nodes by its address; others are reached by ssh",
    "ETH_IF": _DISCOVERS,
    "IB_IF": _DISCOVERS,
}


@dataclass(frozen=True)
class SettingsPlan(configuration.ConfigurationChange):
    """builder.yaml before and after, and the outcome of each key of ``.env``. With an ``error``, nothing changes."""

    outcomes: Mapping[str, str]
    error: str = ""


def plan_settings(project: Project, env: EnvFile, own_engine: str, *, replace: bool) -> SettingsPlan:
    """Plans builder.yaml with the settings of ``env``. Existing values stay, unless ``replace`` is set."""
    before = ""
    try:
        before = configuration.present_text(project)
        existing = configuration.load_configuration(project)
        nodes, outcomes = settle_nodes(env, existing.nodes, own_engine)
        variables = _variables(env, configuration.document(before).get("env") or {}, outcomes, replace=replace)
        after = configuration.with_node_settings(before, nodes) if nodes else before
        after = configuration.with_environment(after, variables) if variables else after
        configuration.document(after)
    except BuilderError as error:
        return SettingsPlan(before, before, {}, error.message)
    return SettingsPlan(before, after, {key: outcomes.get(key) or _other(key) for key in env.values})


def settle_nodes(
    env: EnvFile, existing: Sequence[Node], own_engine: str
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The nodes to add for the machines in CLUSTER_NODES of ``env``, by name, and the outcome of that key. Existing
    nodes are unchanged. ``own_engine`` is the address of this machine's engine."""
    key = "CLUSTER_NODES"
    listed = [part for part in map(str.strip, env.values.get(key, "").split(",")) if part]
    hosts = {login: login.rpartition("@")[2] for login in listed if _LOGIN.fullmatch(login)}
    notes = [f"left out, not a valid name: {login}" for login in listed if login not in hosts]
    if len(hosts) < 2:
        return {}, {key: "; ".join(["one machine needs no node", *notes])} if listed else {}
    own = next((login for login, address in hosts.items() if is_own(address)), None)
    nodes: dict[str, dict[str, Any]] = {}
    for number, (login, address) in enumerate(hosts.items(), start=1):
        is_here = login == own
        node = next((each for each in existing if _is_at(each, address, is_here=is_here)), None)
        name = node.name if node else _name(address, number, {*nodes, *(each.name for each in existing)})
        if node is None:
            nodes[name] = {"engine": own_engine if is_here else f"ssh://{login}", "address": address}
        notes.append(f"{name} is {address}" + (", this machine" if is_here else ""))
    return nodes, {key: "; ".join(notes)}


def is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ipaddress.IPv4Address(address)), 0))
    except (OSError, ValueError):
        return False
    return True


def _is_at(node: Node, address: str, *, is_here: bool) -> bool:
    is_own = is_here and (node.engine.startswith("unix://") or node.engine == "default")
    return address in (node.address, urlsplit(node.engine).hostname) or (is_own and node.address is None)


def _name(address: str, number: int, taken: set[str]) -> str:
    try:
        ipaddress.ip_address(address)
        stem, name = "spark", f"spark{number}"
    except ValueError:
        stem = name = address.strip("-.") or "spark"
    while name in taken:
        number += 1
        name = f"{stem}{number}"
    return name


def _variables(
    env: EnvFile, existing: Mapping[str, Any], outcomes: dict[str, str], *, replace: bool
) -> dict[str, str | None]:
    """The variables to set in builder.yaml; None for a value from the environment. Adds to ``outcomes``."""
    variables: dict[str, str | None] = {}
    for key, value in env.values.items():
        name = key.removeprefix("CONTAINER_")
        if name in (key, "", "NAME"):
            continue
        shell = f"`export {name}=…` in your shell's profile"
        if name in container.SECRETS:
            why = f"a server gets {name} from the environment of the user who starts the server"
            outcomes[key] = f"not taken over: {why}; {shell}"
            continue
        wanted, outcomes[key] = None if redaction.looks_secret(name, value) else value, f"`env: {name}`"
        if wanted is None:
            outcomes[key] += f", without its value, which looks like a secret: {shell}"
        is_other = name in existing and wanted != (None if existing[name] is None else env_text(existing[name]))
        if name not in existing or (is_other and replace):
            variables[name] = wanted
        elif is_other:
            outcomes[key] = f"not taken over: `env` already has another value of {name}"
    return variables


def _other(key: str) -> str:
    if key in _NOT_HERE:
        return _NOT_HERE[key]
    if key == "CLUSTER_NODES":
        return "empty"
    suggestion = words.did_you_mean(key, ("CLUSTER_NODES", *_NOT_HERE))
    return f"not taken over; builder does not use it{f'; {suggestion}' if suggestion else ''}"


# Git never ends if its settings include a pipe without a writer.
_SECONDS = 30


@dataclass(frozen=True)
class UpstreamCommit:
    """The last commit of a checkout that is also on the branch ``ref`` of ``url``, and the ids of its files by path."""

    url: str
    ref: str
    commit: str
    blobs: dict[str, str]


def find_upstream_commit(root: Path) -> UpstreamCommit | None:
    """Finds the last common commit of the checkout at ``root`` and the repository that it was cloned from, without
    using the network. None if the checkout is not a clone."""
    if not (root / ".git").is_dir():
        return None
    repository = git.GitRepository(root / ".git", git.split(""))

    def output(*arguments: str) -> str:
        result = git.run_local(repository, arguments, seconds=_SECONDS)
        return "" if result.status else result.output.decode("utf-8", "surrogateescape").strip()

    try:
        default = output("symbolic-ref", "refs/remotes/origin/HEAD")
        branch = output("rev-parse", "--symbolic-full-name", "@{upstream}") or default
        remote, _, ref = branch.removeprefix("refs/remotes/").partition("/")
        url = git.split(output("config", "--get", f"remote.{remote}.url")).url
        commit = output("merge-base", "HEAD", branch)
        if not branch.startswith("refs/remotes/") or not url or url.startswith(".") or not commit:
            return None
        blobs = {entry.path: entry.blob for entry in mirror.tree_entries(repository, commit)}
    except (BuilderError, OSError):
        return None
    return UpstreamCommit(url, DEFAULT_BRANCH if branch == default else ref, commit, blobs)


def origin_of_files(upstream: UpstreamCommit | None, path: str, files: Sequence[mod.PlainFile]) -> Origin | None:
    """The origin of ``files`` at ``path`` of the checkout; None if they are the user's own, or were edited."""
    blobs = upstream.blobs if upstream else {}
    there = {name: blob for name, blob in blobs.items() if name == path or name.startswith(f"{path}/")}
    written = {file.path: b"blob %d\0" % len(file.content) + file.content for file in files}
    digests = {name: hashlib.sha1(blob, usedforsecurity=False).hexdigest() for name, blob in written.items()}
    here = {path if path in there else f"{path}/{name}": digest for name, digest in digests.items()}
    if upstream is None or not there or here != there:
        return None
    return Origin(upstream.url, path, upstream.ref, upstream.commit, copies.origin_digests(files))


# The files that a project copies from a checkout, and the images that it adopts from the engine.

# The image names of build-and-copy.sh: scripts start these images without a recipe.
DEFAULT_NAMES = ("vllm-node", "vllm-node-tf5", "vllm-node-mxfp4", "vllm-node-b12x")
# Valid image names. With any other name, an engine refuses the whole request.
_NAME = re.compile(r"[a-z0-9]+(?:(?:[._/]|__|-+|:[0-9]+/)[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?")
# Numbers, and the temporary names of images that are getting a number.
_OURS = re.compile(r"[0-9]+|adopting-[0-9a-f]+")


@dataclass(frozen=True)
class AdoptableImage:
    """An image of the engine without a number, and one of its tags. ``promote`` if it would become the current image:
    it is ``latest``, and its repository has no numbers yet."""

    tag: str
    size: int
    created: str
    promote: bool

    @property
    def repository(self) -> str:
        return images.repository(self.tag)


def adoptable(workspace: Workspace, recipes: Sequence[Recipe]) -> tuple[AdoptableImage, ...]:
    """The images without a number that ``recipes`` and scripts start: all tags of such a repository, but only the named
    tag if the image is from a registry. Images with a number of another project are left out. ``latest`` comes first in
    its repository, since the first number becomes current. Raises EngineError if no engine answers, and LockError for a
    damaged images.lock."""
    containers = filter(_NAME.fullmatch, {*DEFAULT_NAMES, *(recipe.container for recipe in recipes)})
    references = {":".join(images.split_tag(name)) if "/" in name else images.repository(name) for name in containers}
    lock = lock_file.read_project_lock(workspace.project)
    by_image: dict[tuple[str, str], list[str]] = {}
    for tag, identity in images.image_tags(workspace.engine, sorted(references)).items():
        repository, name = images.split_tag(tag)
        if not _OURS.fullmatch(name):
            by_image.setdefault((repository, identity), []).append(tag)
    of_others = claims.contents_of_others(workspace.engine, claims.existing_identity(workspace.project))
    collected = []
    for (repository, _), same in by_image.items():
        tag = min(same, key=lambda tag: (not tag.endswith(":latest"), tag))
        details = images.inspect_image(workspace.engine, tag)
        numbers = lock.images[repository].numbers if repository in lock.images else {}
        numbered = {*of_others, *(record.fingerprint for record in numbers.values())}
        if details and images.fingerprint(details) not in numbered:
            promote = not numbers and tag.endswith(":latest")
            size = images.disk_size(workspace.engine, tag)
            collected.append(AdoptableImage(tag, size, details.created, promote))
    return tuple(sorted(collected, key=lambda each: (each.repository, not each.tag.endswith(":latest"), each.created)))


def plan_part(
    project: Project, checkout: Checkout, kind: copies.Kind, name: str, path: Path, upstream: UpstreamCommit | None
) -> PlannedCopy:
    if kind == "mod" and not mod.NAME.fullmatch(name):
        return PlannedCopy("mod", name, reason="the name of a mod may contain only letters, digits and . _ + -")
    if kind == "recipe" and not path.resolve().is_relative_to(checkout.root):
        return PlannedCopy("recipe", name, reason="a link that leads outside the checkout")
    try:
        if kind == "mod":
            contents = read_mod(checkout, path)
        else:
            contents = (mod.PlainFile(copies.RECIPE, False, files.read_plain_file(path.resolve(), LARGEST_TEXT)),)
        origin = origin_of_files(upstream, checkout.shown(path), contents)
        return copies.compare_copy(project, kind, name, contents, origin)
    except (BuilderError, OSError) as error:
        reason = error.message if isinstance(error, BuilderError) else error.strerror or str(error)
        return PlannedCopy(kind, name, reason=reason)


def mods_named(path: Path) -> tuple[str, ...]:
    """The mods in the recipe at ``path``, in the recipe's spelling; empty if the recipe cannot be read."""
    with suppress(OSError):
        entries = copies.entries_of_recipe(files.read_plain_file(path.resolve(), LARGEST_TEXT), "mods")
        return tuple(map(posixpath.normpath, entries))
    return ()

"""Registries of recipes: named git repositories, in which `recipes add @REGISTRY/NAME` finds a recipe. One of them has
vLLM's own recipes, which are converted here."""

from __future__ import annotations

import posixpath
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from builder.base import yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, SourceError, UsageError
from builder.base.values import dataclass, replace
from builder.base.words import did_you_mean
from builder.definitions import configuration, recipe
from builder.definitions.mod import PlainFile
from builder.moving import copies
from builder.sources import foreign_files, mirror

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.moving.copies import CopyAddress, PlannedCopy
    from builder.sources.git import Notify


_SHIPPED = Path(__file__).with_suffix(".yaml")
_FORM = "@REGISTRY/NAME[@REF], such as @official/NAME or @official/NAME@COMMIT"
_NAMED = re.compile(
    r"@(?P<registry>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<name>[A-Za-z0-9][A-Za-z0-9._+-]*(?:/[A-Za-z0-9][A-Za-z0-9._+-]*)*)"
    r"(?:@(?P<ref>[^@\s]+))?"
)


def read_registries(project: Project) -> dict[str, str]:
    """The addresses of registries by name. Registries in builder.yaml override registries of this program."""
    registries: dict[str, str] = yaml_file.load(_SHIPPED.read_text(encoding="utf-8"), _SHIPPED.name)
    with suppress(FileProblemsError):  # the code that needs builder.yaml reports its problems
        registries |= configuration.load_configuration(project).recipe_registries
    return registries


def registry_address(project: Project, name: str) -> CopyAddress:
    """The address of the registry ``name``. Raises UsageError if it does not exist."""
    registries = read_registries(project)
    if name not in registries:
        hint = did_you_mean(name, registries) or f"known registries: {', '.join(registries)}"
        more = "`recipe_registries:` in builder.yaml adds one"
        raise UsageError(f"no registry of recipes is called `{name}`", hint=f"{hint}; {more}")
    return copies.parse_address(registries[name])


def find_in_registry(project: Project, text: str, notify: Notify) -> str:
    """The address of the recipe ``@REGISTRY/NAME[@REF]`` for `copies.parse_address`. NAME is its file, with or without
    folders. Raises UsageError for another format or an ambiguous name, and SourceError for an unknown name."""
    match = _NAMED.fullmatch(text)
    if not match:
        raise UsageError(f"`{text}` does not name a recipe of a registry", hint=_FORM)
    address = registry_address(project, match["registry"])
    address = replace(address, ref=match["ref"] or address.ref)
    upstream = copies.find_repository(project, address, notify)
    paths = copies.recipes_at(upstream)
    wanted = posixpath.splitext(match["name"])[0] if match["name"].endswith((".yaml", ".yml")) else match["name"]
    stems = {path: posixpath.splitext(path)[0] for path in paths}
    matching = [path for path, stem in stems.items() if stem == wanted or stem.endswith(f"/{wanted}")]
    if not matching:
        suggestion = did_you_mean(wanted, [posixpath.basename(stem) for stem in stems.values()])
        at = "" if address.ref == copies.DEFAULT_BRANCH else f"@{address.ref}"
        hint = suggestion or f"`builder recipes add {upstream.url}//{address.path}{at}` lists the recipes there"
        raise SourceError(f"the registry {match['registry']} has no recipe {wanted}", hint=hint)
    if len(matching) > 1:
        listed = ", ".join(matching)
        hint = f"name a recipe with its folder: @{match['registry']}/{stems[matching[0]]}"
        raise UsageError(f"the registry {match['registry']} has several recipes named {wanted}: {listed}", hint=hint)
    ref = "" if address.ref == copies.DEFAULT_BRANCH else f"@{address.ref}"
    return f"{address.url}//{matching[0]}{ref}"


# vLLM's own recipes (https://github.com/vllm-project/recipes) become builder's recipes, for one kind of machine.

PREFIX = "vllm:"
HARDWARE = "dgx_spark_gb10"
REGISTRY = "vllm"
_VLLM_FORM = "vllm:OWNER/MODEL[:VARIANT][@REF], such as vllm:Qwen/Qwen3.6-27B"
_ASKED = re.compile(
    r"vllm:(?P<model>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<variant>[A-Za-z0-9][\w.-]*))?(?:@(?P<ref>[^@\s]+))?",
    re.ASCII,
)
_PUBLISHED = ("models", "strategies", "taxonomy.yaml")  # one fetch gets all of them
_HARDWARE = re.compile(r"[a-z0-9][a-z0-9_]*")
# The path in the origin of a converted recipe: the file, and the variant and hardware of the conversion.
_ORIGIN = re.compile(r"(?P<path>models/[^#]+)#(?P<variant>[\w.-]+)@(?P<hardware>[a-z0-9_]+)", re.ASCII)


def plan_vllm_recipe(
    project: Project, text: str, hardware: str | None, name: str | None, notify: Notify
) -> PlannedCopy:
    """Plans the recipe ``text`` (``vllm:OWNER/MODEL``, also the id of a variant's checkpoint) for ``hardware``, a name
    in vLLM's taxonomy. Raises UsageError for another format or an unknown recipe, SourceError if the repository does
    not answer, and FileProblemsError if the recipe cannot be read."""
    match = _ASKED.fullmatch(text)
    if not match:
        raise UsageError(f"`{text}` does not name a recipe of vLLM", hint=_VLLM_FORM)
    chosen = hardware or HARDWARE
    if not _HARDWARE.fullmatch(chosen):
        raise UsageError(f"--hardware {chosen} is not a valid name; an example is {HARDWARE}")
    published = _Published.fetch(project, match["ref"], notify)
    file, variant = published.find(match["model"], match["variant"])
    return published.planned(project, file, variant, chosen, name or match["model"].rpartition("/")[2].lower())


def plan_vllm_recipe_again(
    project: Project, origin: copies.Origin, ref: str, name: str, notify: Notify
) -> PlannedCopy | None:
    """Plans the new version at ``ref`` of a converted recipe; None if ``origin`` is not one of vLLM's recipes."""
    match = _ORIGIN.fullmatch(origin.path)
    if match is None:
        return None
    published = _Published.fetch(project, ref, notify, origin.url)
    return published.planned(project, match["path"], match["variant"], match["hardware"], name)


@dataclass(frozen=True)
class _Published:
    """The repository at one commit, with the texts of its YAML files by path."""

    upstream: copies.Upstream
    texts: Mapping[str, str]

    @classmethod
    def fetch(cls, project: Project, ref: str | None, notify: Notify, url: str | None = None) -> _Published:
        address = registry_address(project, REGISTRY)
        address = replace(address, url=url or address.url, path="", ref=ref or address.ref)
        upstream = copies.find_repository(project, address, notify)
        repository = mirror.locate(project.mirrors, address.url, notify)
        for path in _PUBLISHED:
            if not any(each == path or each.startswith(f"{path}/") for each in upstream.paths):
                raise SourceError(f"{upstream.url} has no {path}: it does not contain vLLM's recipes")
        files = foreign_files.read_foreign_files(repository, upstream.commit, *_PUBLISHED)
        return cls(upstream, {file.path: file.content.decode("utf-8", "replace") for file in files})

    def read(self, file: str) -> dict[str, Any]:
        data = yaml_file.load_shared(self.texts.get(file, ""), file)[0]
        return data if isinstance(data, dict) else {}

    def find(self, model: str, variant: str | None) -> tuple[str, str]:
        """The file of the recipe for ``model``, and the requested variant, or else the variant with this checkpoint."""
        files = sorted(path for path in self.texts if path.startswith("models/") and path.endswith(".yaml"))
        by_model: dict[str, tuple[str, str]] = {}
        for file in (path for path in files if model.lower() == path[7:-5].lower() or model in self.texts[path]):
            data = self.read(file)
            for key, each in _mapping(data, "variants").items():
                named = each.get("model_id") if isinstance(each, dict) else None
                if isinstance(named, str):
                    by_model.setdefault(named.lower(), (file, key))
            by_model[str(_mapping(data, "model").get("model_id")).lower()] = (file, "default")
            by_model[file[7:-5].lower()] = (file, "default")
        if model.lower() not in by_model:
            names = [path[7:-5] for path in files]
            hint = did_you_mean(model, names) or f"vLLM has {len(names)} recipes, such as {', '.join(names[:6])}"
            raise UsageError(f"vLLM has no recipe for {model} ({self.upstream.commit[:12]})", hint=hint)
        file, own = by_model[model.lower()]
        return file, variant or own

    def planned(self, project: Project, file: str, variant: str, hardware: str, name: str) -> PlannedCopy:
        copies.require_name("recipe", name)
        made = _Making(self, file, variant, hardware)
        text = made.text(name)
        parsed = recipe.parse_recipe(text, f"{name}.yaml")
        if parsed.recipe is None:
            raise FileProblemsError(parsed.problems)
        files = (PlainFile(copies.RECIPE, executable=False, content=text.encode()),)
        path = f"{file}#{made.variant_key}@{hardware}"
        ref = self.upstream.address.ref
        origin = copies.Origin(self.upstream.url, path, ref, self.upstream.commit, copies.origin_digests(files))
        return copies.compare_copy(project, "recipe", name, files, origin)


def _value(data: Any, *keys: str) -> Any:
    """The value at ``keys``; None if it does not exist."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _mapping(data: Any, *keys: str) -> dict[str, Any]:
    value = _value(data, *keys)
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value if isinstance(each, str | int | float)] if isinstance(value, list) else []


# Arguments and variables, each with its source.

_STRATEGIES = ("single_node_tp", "single_node_tep", "multi_node_tp", "multi_node_tep", "multi_node_tp_pp")
_MOST_NODES = 16  # of vLLM's own command builder
# vLLM's recipes have such names for the user to fill in. In builder, the nodes of builder.yaml determine the values.
_TO_FILL_IN = re.compile(r"\$[A-Z_][A-Z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BRAND = "nvidia"  # the only brand that builder supports
_Keys = tuple[str, ...]  # the path of a value


class _Sourced(NamedTuple):
    """An option with its values, or a variable with its value, and its source."""

    words: tuple[str, ...]
    source: str


class _Making:
    """The conversion of one of vLLM's recipes for one kind of machine: first the choices, then their results."""

    def __init__(self, published: _Published, file: str, variant: str, hardware: str) -> None:
        self.published, self.file, self.hardware = published, file, hardware
        self.data = published.read(file)
        self.taxonomy = published.read("taxonomy.yaml")
        profiles = _mapping(self.taxonomy, "hardware_profiles")
        if hardware not in profiles:
            hint = did_you_mean(hardware, profiles) or f"known hardware: {', '.join(profiles)}"
            raise UsageError(f"vLLM's recipes do not know the hardware {hardware}", hint=hint)
        self.profile = _mapping(profiles, hardware)
        generation = self.profile.get("generation") or self.profile.get("gpu_generation")
        self.generation = str(generation[0] if isinstance(generation, list) and generation else generation)
        count = self.profile.get("gpu_count")
        self.gpus = count if isinstance(count, int) and count > 0 else 1
        self.variants = _mapping(self.data, "variants")
        self.variant_key = variant
        if variant not in self.variants:
            raise UsageError(f"{file} has no variant {variant}", hint=f"variants: {', '.join(self.variants) or 'none'}")
        self.variant = _mapping(self.variants, variant)
        self._require_served()
        self.strategy_key, self.nodes = self._choose_strategy()
        self.strategy = published.read(f"strategies/{self.strategy_key}.yaml")
        self.features, self.left_out = self._choose_features()

    def _require_served(self) -> None:
        """Raises UsageError if vLLM does not serve the recipe, or not on this hardware."""
        if str(self.profile.get("brand", "")).lower() != _BRAND:
            raise UsageError(f"--hardware {self.hardware}: builder serves vLLM's recipes only on NVIDIA GPUs")
        if "omni" in _texts(_mapping(self.data, "meta").get("tasks")):
            raise UsageError(f"{self.file} is served by vllm-omni: builder serves only with vLLM")
        supported = _texts(self.variant.get("supported_hardware")) or [self.hardware]
        needs = _mapping(self.variant, "precision_hardware")
        if not self.variant.get("precision_hardware") and self.variant.get("precision") in ("nvfp4", "fp4"):
            needs = {"brand": "NVIDIA", "generation": "blackwell"}
        wanted = needs.get("generation") or self.generation, str(needs.get("brand") or _BRAND).lower()
        if _mapping(self.data, "meta", "hardware").get(self.hardware) == "unsupported":
            raise UsageError(f"{self.file} says that {self.hardware} is not supported")
        if wanted != (self.generation, _BRAND) or self.hardware not in supported:
            others = ", ".join(key for key in self.variants if key != self.variant_key)
            hint = f"other variants: {others}; `vllm:MODEL:VARIANT` selects one" if others else ""
            raise UsageError(f"the variant {self.variant_key} of {self.file} is not for {self.hardware}", hint=hint)

    def _by_hardware(self, value: Any) -> Any:
        """The value of a mapping for the hardware's name, generation or brand; any other ``value`` itself."""
        if not isinstance(value, dict):
            return value
        keys = (self.hardware, self.generation, _BRAND, "default")
        return next((value[key] for key in keys if value.get(key) is not None), None)

    def _choose_strategy(self) -> tuple[str, int]:
        """The strategy that vLLM recommends, and the number of machines."""
        listed = _texts(self.data.get("compatible_strategies"))
        gates = _mapping(self.data, "strategy_hardware")
        granted = [key for key, gate in gates.items() if isinstance(gate, dict) and "supported" in gate.values()]
        offered = []
        strategies = list(dict.fromkeys((*listed, *granted)))
        for key in strategies:
            gate = self._by_hardware(gates.get(key)) if isinstance(gates.get(key), dict) else None
            several = key.startswith("multi_node_") or key == "pd_cluster"
            is_possible = self.profile.get("scalable") is not False or not several
            is_possible &= self._nodes_for(key) <= (_MOST_NODES if several else 1)
            if (gate != "unsupported" if gate is not None else key in listed) and is_possible:
                offered.append(key)
        nodes = 2 if self._fits(1) is False and any(key.startswith("multi_node_") for key in offered) else 1
        chosen = self._recommended(strategies, nodes)
        if chosen not in offered:
            chosen = next((key for key in offered if key != "pd_cluster"), chosen)
        nodes = max(nodes, 2 if chosen.startswith("multi_node_") else 1, self._nodes_for(chosen))
        if chosen not in _STRATEGIES:
            message = f"on this hardware, {self.file} uses the strategy {chosen}, which builder does not support"
            raise UsageError(message)
        return chosen, nodes

    def _nodes_for(self, strategy: str) -> int:
        """The number of machines with as many GPUs as the recipe requires for the strategy."""
        least = self.data.get("strategy_min_gpus")
        levels = (least, _value(least, self.hardware))
        sizes = (_value(level, strategy) if isinstance(level, dict) else level for level in levels)
        return max([1, *(-(-size // self.gpus) for size in sizes if isinstance(size, int))])

    def _fits(self, share: int) -> bool | None:
        """True if the variant fits into 1/``share`` of the machine's memory; None if a size is unknown."""
        size, room = self.variant.get("vram_minimum_gb"), self.profile.get("vram_gb")
        is_known = isinstance(size, int | float) and isinstance(room, int | float)
        return size <= room / share if is_known else None  # type: ignore[operator]

    def _recommended(self, offered: Sequence[str], nodes: int) -> str:
        explicit = self.data.get("default_strategy")
        if isinstance(explicit, str) and explicit in offered:
            if nodes > 1:  # the same strategy for several machines
                explicit = explicit.replace("single_node_", "multi_node_", 1)
            if explicit in offered:
                return explicit
        preferred = ("multi_node_tp", "multi_node_tep") if nodes > 1 else ()
        return next((key for key in (*preferred, "single_node_tp", *offered) if key in offered), "single_node_tp")

    def _choose_features(self) -> tuple[list[str], list[str]]:
        """The features that are on by default, and the features that the user may turn on."""
        opt_in = {*_texts(self.data.get("opt_in_features"))}
        opt_in |= {*_texts(_mapping(self.data, "hardware_opt_in_features").get(self.hardware))}
        forced = _mapping(self.variant, "default_modes")
        every = _mapping(self.data, "features")
        chosen = [key for key in every if key in forced or key not in opt_in]
        return chosen, [key for key in every if key not in chosen]

    def _layers(self) -> Iterator[tuple[str, _Keys, str, str]]:
        """The mappings with arguments and variables, in order: each with its file, its path, the keys of its arguments
        and the keys of its variables. Later values override earlier values."""
        variant = ("variants", self.variant_key)
        own = ("strategy_overrides", self.strategy_key)
        yield self.file, ("model",), "base_args", "base_env"
        yield self.file, variant, "extra_args", "extra_env"
        yield self.file, (*variant, "hardware_overrides", self.hardware), "extra_args", "extra_env"
        yield f"strategies/{self.strategy_key}.yaml", (), "vllm_args", "env"
        yield self.file, own, "extra_args vllm_args", "env extra_env"
        yield from ((self.file, path, "extra_args", "extra_env") for path in self._hardware_paths())
        yield from ((self.file, path, "args", "") for key in self.features for path in self._of_feature(key))

    def arguments(self) -> list[_Sourced]:
        options: list[_Sourced] = []
        for file, path, keys, _ in self._layers():
            options += [option for key in keys.split() for option in self._options((*path, key), file)]
            if file != self.file:
                where = self._where("parallel_flag", file=file)
                options += [_Sourced((flag, str(size)), where) for flag, size in self._sizes().items()]
        for word, source in ((word, each.source) for each in options for word in each.words):
            if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", word):
                raise SourceError(f"{source}: an argument contains a control character")
        last = {each.words[0]: at for at, each in enumerate(options)}
        return [
            each for at, each in enumerate(options) if last[each.words[0]] == at or not each.words[0].startswith("-")
        ]

    def _sizes(self) -> dict[str, int]:
        """The number of GPUs for each option."""
        if self.nodes == 1:
            return {str(self.strategy.get("parallel_flag") or "--tensor-parallel-size"): self._single_size()}
        if self.strategy.get("parallelism") == "tp_pp":
            return {"--tensor-parallel-size": self.gpus, "--pipeline-parallel-size": self.nodes}
        return {"--tensor-parallel-size": self.gpus * self.nodes}

    def _single_size(self) -> int:
        if self.strategy_key != "single_node_tp":
            return self.gpus
        for declared in (self.variant.get("tp"), _mapping(self.data, "strategy_overrides", "single_node_tp").get("tp")):
            size = self._by_hardware(declared)
            if isinstance(size, int) and size > 0:
                return min(size, self.gpus)
        return 1 if self._fits(self.gpus) else self.gpus

    def _hardware_paths(self) -> Iterator[_Keys]:
        """The overlays for this kind of machine. The strategy's overlays replace the recipe's and the variant's."""
        own = ("strategy_overrides", self.strategy_key, "hardware_overrides")
        layers: list[_Keys] = [("hardware_overrides",), ("variants", self.variant_key, "hardware_overrides")]
        of_strategy = self._first_of(own)
        yield from [of_strategy] if of_strategy else filter(None, map(self._first_of, layers))
        yield (*own, self.hardware)

    def _first_of(self, path: _Keys) -> _Keys | None:
        layers = _mapping(self.data, *path)
        return next(((*path, key) for key in (self.generation, _BRAND) if layers.get(key)), None)

    def _of_feature(self, key: str) -> Iterator[_Keys]:
        path: _Keys = ("features", key)
        feature = _mapping(self.data, *path)
        strategies = _texts(feature.get("strategies"))
        if strategies and self.strategy_key not in strategies:
            return
        if modes := _mapping(feature, "modes"):
            mode = self._mode(feature, key, modes)
            if mode is None:
                return
            path = (*path, "modes", mode)
            overlays = _mapping(modes, mode, "hardware_overrides")
            keys: tuple[str, ...] = (self.hardware, self.generation, _BRAND, "default")
        else:
            overlays = _mapping(feature, "hardware_overrides")
            keys = (self.generation, _BRAND)
        overlay = next((each for each in keys if isinstance(_mapping(overlays, each).get("args"), list)), None)
        yield (*path, *(("hardware_overrides", overlay) if overlay else ()))

    def _mode(self, feature: Mapping[str, Any], key: str, modes: Mapping[str, Any]) -> str | None:
        def is_allowed(name: str) -> bool:
            variants = _texts(_mapping(modes, name).get("variants"))
            gates = _mapping(modes, name, "hardware")
            refused = "unsupported" in (gates.get(self.generation), gates.get(self.hardware))
            return not refused and (not variants or self.variant_key in variants)

        allowed = [name for name in modes if is_allowed(name)]
        wanted = (_mapping(self.variant, "default_modes").get(key), feature.get("default_mode"))
        return next((name for name in wanted if name in allowed), allowed[0] if allowed else None)

    def _options(self, path: _Keys, file: str = "") -> Iterator[_Sourced]:
        value = _value(self.published.read(file or self.file), *path)
        if value is not None and (not isinstance(value, list) or len(_texts(value)) < len(value)):
            problem = Problem(self._location(*path, file=file), f"`{'.'.join(path)}` is not a list of strings")
            raise FileProblemsError((problem,))
        for words in _paired(_texts(value)):
            yield _Sourced(words, self._where(*path, file=file))

    def _location(self, *path: str | int, file: str = "") -> Location:
        name = file or self.file
        return yaml_file.location_of(path, self.published.texts.get(name, ""), name)

    def _where(self, *path: str, file: str = "") -> str:
        location = self._location(*path, file=file)
        return _plain(f"{location.file}:{location.line} {'.'.join(path)}")

    def variables(self) -> dict[str, _Sourced]:
        result: dict[str, _Sourced] = {}
        for file, path, _, keys in self._layers():
            for key in keys.split():
                where = (*path, key)
                for name, value in _mapping(self.published.read(file), *where).items():
                    if not _VARIABLE.fullmatch(name) or isinstance(value, dict | list) or "\0" in str(value):
                        message = f"`{name}` is not a valid environment variable, or its value is not plain text"
                        raise FileProblemsError((Problem(self._location(*where, file=file), message),))
                    source = self._where(*where, name, file=file)
                    result[name] = _Sourced(("" if value is None else str(value),), source)
        return result

    def image(self) -> _Sourced:
        """The recipe's image for this brand; vLLM's own image if the recipe names none."""
        variant = ("variants", self.variant_key)
        for above in ((*variant, "hardware_overrides", self.hardware), variant, ("model",)):
            path = (*above, "docker_image")
            value = _value(self.data, *path)
            if isinstance(value, dict):
                is_by_brand = any(brand in value for brand in ("nvidia", "amd", "tpu", "intel"))
                value = value.get(_BRAND) if is_by_brand else value
            if isinstance(value, dict):  # by CUDA version
                value = value.get("cu130") or value.get("cu129")
            if isinstance(value, str):
                return _Sourced((value,), self._where(*path))
        tag = "nightly" if _mapping(self.data, "model").get("nightly_required") is True else "latest"
        return _Sourced((f"vllm/vllm-openai:{tag}",), "vLLM's own image, because the recipe names none")

    # The text.

    def text(self, name: str) -> str:
        """The recipe ``name``, in version 1 of the format."""
        chosen = self.variant.get("model_id")
        where = ("variants", self.variant_key, "model_id") if chosen else ("model", "model_id")
        model = str(chosen or _mapping(self.data, "model").get("model_id") or "")
        image, variables = self.image(), self.variables()
        arguments = self.arguments()
        left = {key: told for key, told in variables.items() if _TO_FILL_IN.fullmatch(told.words[0])}
        rows = [(shlex.join(told.words), told.source) for told in arguments]
        description = str(_mapping(self.data, "meta").get("description") or "")
        lines = [*self._head(left), 'recipe_version: "1"', *_entry("name", name)]
        lines += _entry("description", description, self._where("meta", "description"))
        lines += [*_entry("model", model, self._where(*where)), *_entry("container", image.words[0], image.source)]
        if self.nodes > 1:
            lines += _entry("cluster_only", True, f"{self.strategy_key}: {self.nodes} machines of this kind")
        if kept := {key: told for key, told in variables.items() if key not in left}:
            lines.append("env:")
            for key, told in kept.items():
                value = re.sub(r'([$`"\\])', r"\\\1", told.words[0])
                lines += (f"  {line}" for line in _entry(key, value, told.source))
        lines += ["# Where each line of the command comes from:"]
        lines += [f"# {_plain(words)}: {source}" for words, source in [("vllm serve", self._where(*where)), *rows]]
        options = (words.replace("{", "{{").replace("}", "}}") for words, _ in rows)
        body = " \\\n    ".join(["vllm serve {model}", *options])
        return "\n".join([*lines, "command: |", f"  {body}", ""])

    def _head(self, left: Mapping[str, _Sourced]) -> list[str]:
        """The lines with the choices, and with everything that the recipe does not do."""
        upstream, meta = self.published.upstream, _mapping(self.data, "meta")
        tried = _mapping(meta, "hardware").get(self.hardware)
        told = [
            f"Made by `builder recipes add` from {self.file} of {upstream.url}, commit {upstream.commit}.",
            f"Hardware {self.hardware} ({tried or 'no test is recorded'}).",
            f"Variant {self.variant_key}, strategy {self.strategy_key}.",
        ]
        oldest = self.variant.get("min_vllm_version") or _mapping(self.data, "model").get("min_vllm_version")
        told += [f"vLLM {oldest} or later ({self._where('model', 'min_vllm_version')})."] if oldest else []
        for key in self.left_out:
            options = (each for path in self._of_feature(key) for each in self._options((*path, "args")))
            words = [word for each in options for word in each.words]
            told.append(f"Left out, for you to add ({self._where('features', key)}): {shlex.join(words)}")
        told += [
            f"Left out: {key}={item.words[0]} ({item.source}); builder sets it on each node."
            for key, item in left.items()
        ]
        dependencies = self.data.get("dependencies")
        for index, each in enumerate(dependencies if isinstance(dependencies, list) else ()):
            command = each.get("command") if isinstance(each, dict) else None
            where = self._location("dependencies", index)
            told.append(f"Not run ({where.file}:{where.line} dependencies): {textwrap.shorten(str(command), 200)}")
        note = _mapping(self.data, "hardware_notes", self.hardware).get("body")
        told += [f"Note of that file: {note}"] if note else []
        wrapped = (textwrap.wrap(_plain(text), 116, break_long_words=False, break_on_hyphens=False) for text in told)
        return [f"# {line}" for lines in wrapped for line in lines]


def _paired(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Each option with its values, up to the next option."""
    result: list[tuple[str, ...]] = []
    for word in filter(None, words):
        if word.startswith("-") or not result:
            result.append((word,))
        else:
            result[-1] = (*result[-1], word)
    return result


def _plain(text: str) -> str:
    """Text for a comment: one line, without control characters of a terminal."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def _entry(key: str, value: Any, source: str = "") -> list[str]:
    """A line of YAML, with its source as a comment."""
    line = yaml_file.dump({key: value}).rstrip("\n")
    return [line.replace("\n", " ") + (f"  # {_plain(source)}" if source else "")] if value != "" else []

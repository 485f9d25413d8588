"""Asks the vLLM of an image about options, variables and names: `installed.ask_vllm` runs this file in a container.

It uses only the standard library and the image's own vLLM (0.19 to 0.33). Its arguments are the pieces of a list: JSON,
packed with zlib and base64. The list has the ``argv`` of each `vllm serve` with the ``env`` of its recipe. vLLM itself
parses and validates each command, and does nothing else: it loads no model, and reads no file that a recipe names. The
last line of the output is the answer.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import importlib
import json
import os
import re
import signal
import sys
import zlib
from pathlib import Path
from typing import Any, NoReturn, get_args

Json = dict[str, Any]

SECONDS = 20  # for one command: some values could keep their parser busy forever
MOST_FAULTS = 20
LONGEST_MESSAGE = 600
# vLLM opens or imports the files of these options. The files come from mods or volumes, which are missing here.
FILES = {"--config", "--chat-template", "--tool-parser-plugin", "--reasoning-parser-plugin"}
PLUGINS = {"--tool-parser-plugin", "--reasoning-parser-plugin"}


class RefusedCommandError(Exception):
    """vLLM's parser refused a command; the text is its reason."""


class OverError(BaseException):
    """A command took too long."""


def refuse(_parser: object, message: str) -> NoReturn:
    raise RefusedCommandError(message)


def is_option(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def name_of(word: str) -> str:
    """The option in a word, in vLLM's spelling: ``--max_model_len=8`` is ``--max-model-len``."""
    name = word.partition("=")[0]
    return name.partition(".")[0].replace("_", "-") if name.startswith("--") else name


def without(argv: list[str], names: set[str]) -> list[str]:
    """``argv`` without the options of these names and their values."""
    kept: list[str] = []
    dropping = False
    for word in argv:
        if is_option(word):
            dropping = name_of(word) in names
            if dropping:
                continue
        elif dropping:
            continue
        kept.append(word)
    return kept


def take_a_platform() -> None:
    """Without a GPU, vLLM for CUDA selects no platform and makes no parser. This sets the platform of its build."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if platforms.current_platform.is_unspecified():
        try:
            platforms.current_platform = importlib.import_module("vllm.platforms.cuda").CudaPlatform()
        except Exception:  # noqa: BLE001  vLLM itself takes this one if it needs none in particular
            platforms.current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()


class Vllm:
    """The image's vLLM: its parser of `vllm serve`, and its validation after parsing."""

    def __init__(self) -> None:
        take_a_platform()
        self.serve = importlib.import_module("vllm.entrypoints.cli.serve")
        try:
            module = importlib.import_module("vllm.utils.argparse_utils")
        except ImportError:
            module = importlib.import_module("vllm.utils")
        self.parser = module.FlexibleArgumentParser(prog="vllm")
        subparsers = self.parser.add_subparsers(required=False, dest="subparser")
        self.command = next(each for each in self.serve.cmd_init() if each.name == "serve")
        self.options = self.command.subparser_init(subparsers)

    def refusal(self, argv: list[str], *, plugins: bool) -> str:
        """The reason why vLLM refuses ``argv``; empty if vLLM accepts it."""
        try:
            args = self.parser.parse_args(argv)
            self.command.validate(args)
            # The server validates this before it loads anything. Plugins may register more names, and are missing here.
            checks = sys.modules.get(getattr(self.serve.setup_server, "__module__", ""))
            check = getattr(checks, "validate_api_server_args", None)
            if check and not plugins and not getattr(args, "headless", False):
                check(args)
        except SystemExit:
            return ""  # --help
        except KeyError as error:
            return str(error.args[0]) if error.args else "KeyError"
        except Exception as error:  # noqa: BLE001  whatever a parser raises ends `vllm serve`
            return str(error) or type(error).__name__
        return ""

    def faults(self, argv: list[str]) -> list[Json]:
        """All faults of ``argv``. The parser stops at the first fault, so each refused option is removed in turn."""
        plugins = any(name_of(word) in PLUGINS for word in argv)
        rest = without(argv, FILES)
        faults: list[Json] = []
        while len(faults) < MOST_FAULTS and (message := self.refusal(rest, plugins=plugins)):
            names = self.accused(message, rest)
            for name in sorted(names) or [""]:
                unknown = message.startswith("unrecognized arguments") and bool(name)
                faults.append({"option": name, "unknown": unknown, "message": message[:LONGEST_MESSAGE]})
            shorter = without(rest, names)
            if shorter == rest:
                break
            rest = shorter
        return faults

    def accused(self, message: str, argv: list[str]) -> set[str]:
        """The options of ``argv`` at fault, according to a message of the parser."""
        used = {name_of(word) for word in argv if is_option(word)}
        if message.startswith("maximum recursion depth"):
            deepest = max((word.count("{") + word.count("["), at) for at, word in enumerate(argv))[1]
            return {name_of(word) for word in argv[max(deepest - 1, 0) : deepest + 1] if is_option(word)}
        if message.startswith("unrecognized arguments"):
            named = {name_of(word) for word in message.split() if is_option(word)}
            return {name for name in used & named if not self.knows(name)}
        match = re.match(r"argument ([^ :]+)|ambiguous option: ([^ ]+)", message)
        named = {name_of(name) for name in re.split("[/,]", (match[1] or match[2]) if match else "")}
        return {name for name in used if any(each == name or each.startswith(name) for each in named)}

    def knows(self, name: str) -> bool:
        return name in self.options._option_string_actions  # noqa: SLF001  argparse has no public list of options


def registries() -> Json:
    """The registered names by option, and the fields of JSON options that refuse any other field."""
    choices: dict[str, list[str]] = {}
    fields: dict[str, list[str]] = {}
    with contextlib.suppress(Exception):
        module = importlib.import_module("vllm.tool_parsers")
        choices["tool-call-parser"] = sorted(module.ToolParserManager.list_registered())
    with contextlib.suppress(Exception):
        module = importlib.import_module("vllm.reasoning")
        choices["reasoning-parser"] = sorted(module.ReasoningParserManager.list_registered())
    with contextlib.suppress(Exception):
        module = importlib.import_module("vllm.model_executor.model_loader")
        choices["load-format"] = sorted(module._LOAD_FORMAT_TO_MODEL_LOADER)  # noqa: SLF001
    with contextlib.suppress(Exception):
        config = importlib.import_module("vllm.config.speculative")
        choices["speculative method"] = sorted(texts(config.SpeculativeMethod))
        if config.SpeculativeConfig.__pydantic_config__.get("extra") == "forbid":
            fields["speculative-config"] = [each.name for each in dataclasses.fields(config.SpeculativeConfig)]
    with contextlib.suppress(Exception):
        module = importlib.import_module("vllm.v1.attention.backends.registry")
        choices["attention-backend"] = sorted(module.AttentionBackendEnum.__members__)
    return {"choices": choices, "fields": fields}


def texts(kind: Any) -> set[str]:
    """The texts of a ``Literal`` type and of the types in it."""
    return {kind} if isinstance(kind, str) else set().union(*map(texts, get_args(kind)))


def unread(names: set[str], registered: set[str]) -> set[str]:
    """The ``names`` that are neither ``registered`` nor in any file of vLLM or of other Python modules."""
    missing = {name: name.encode() for name in names - registered}
    package = Path(sys.modules["vllm"].__file__ or "").parent
    for folder, suffixes in ((package, (".py", ".so", ".json", ".cu")), (package.parent, (".py", ".pth"))):
        for path in folder.rglob("*") if missing else ():
            if path.suffix in suffixes or (folder == package and os.access(path, os.X_OK) and path.is_file()):
                with contextlib.suppress(OSError):
                    content = path.read_bytes()
                    missing = {name: text for name, text in missing.items() if text not in content}
            if not missing:
                break
    return set(missing)


def variable_faults(env: Json, registered: Json) -> Json:
    """Returns vLLM's errors about refused values, by variable."""
    result = {}
    for name in env.keys() & registered.keys():
        try:
            registered[name]()
        except Exception as error:  # noqa: BLE001
            result[name] = f"{error or type(error).__name__}"[:LONGEST_MESSAGE]
    return result


def over(_signal: int, _frame: object) -> NoReturn:
    raise OverError


def main(commands: list[Json]) -> Json:
    vllm = Vllm()
    variables = importlib.import_module("vllm.envs").environment_variables
    argparse.ArgumentParser.error = refuse  # type: ignore[assignment,method-assign]
    signal.signal(signal.SIGALRM, over)
    answers: list[Json | None] = []
    lost = unread({name for each in commands for name in each["env"]}, set(variables))
    before = dict(os.environ)
    for each in commands:
        signal.alarm(SECONDS)
        try:
            os.environ.update(each["env"])
            faults, values = vllm.faults(each["argv"]), variable_faults(each["env"], variables)
            answers.append({"faults": faults, "values": values, "unread": sorted(lost & each["env"].keys())})
        except (OverError, ValueError):  # ValueError: a variable cannot contain this text
            answers.append(None)
        finally:
            signal.alarm(0)
            os.environ.clear()
            os.environ.update(before)
    actions = vllm.options._option_string_actions  # noqa: SLF001
    facts = {
        "version": sys.modules["vllm"].__version__,
        "options": {name: list(map(str, action.choices or ())) for name, action in actions.items()},
        "variables": sorted(variables),
        **registries(),
    }
    return {"facts": facts, "commands": answers}


if __name__ == "__main__":
    packed = base64.b64decode("".join(sys.argv[1:]))
    with contextlib.redirect_stdout(sys.stderr):
        answer = main(json.loads(zlib.decompress(packed)))
    print(f"\n{json.dumps(answer)}")  # noqa: T201

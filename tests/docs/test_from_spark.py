"""docs/how-to/from-spark-vllm-docker.md has a row for every option of the scripts, and names only what exists here."""

from __future__ import annotations

import json
import re

import click
import pytest

from builder.cli import main
from builder.definitions.fields import SCHEMAS
from tests import projects

PAGE = (projects.REPOSITORY_ROOT / "docs/how-to/from-spark-vllm-docker.md").read_text()

# Facts from github.com/eugr/spark-vllm-docker at commit a10c3f7: what each script's own help lists.
LAUNCH = """
    -n --nodes -t --name --eth-if --ib-if -e --env -j --nccl-debug --apply-mod --apply-vllm-pr --solo --master-port
    --head-port -p --publish -v --volume --ray --no-ray --no-cache-dirs --keep-entrypoint --earlyoom --earlyoom-args -d
    --non-privileged --mem-limit-gb --mem-swap-limit-gb --pids-limit --shm-size-gb --config
"""
OPTIONS = {
    "build-and-copy.sh": """
        -t --tag --use-wheels --gpu-arch --rebuild-flashinfer --rebuild-vllm --force-flashinfer-download
        --force-vllm-download --force-download --vllm-repo --vllm-source-dir --vllm-ref --torch-version
        --torchvision-version --torchaudio-version --flashinfer-ref -c --copy-to --copy-to-host --copy-to-hosts
        --copy-parallel -j --build-jobs -u --user --tf5 --pre-tf --pre-transformers --exp-mxfp4 --experimental-mxfp4
        --exp-b12x --experimental-b12x --apply-vllm-pr --apply-preset-vllm-prs --apply-flashinfer-pr --full-log
        --no-build --network --cleanup --config --setup
    """,
    "run-recipe.sh": f"""{LAUNCH}
        -l --list --setup --build-only --download-only --force-build --force-download --dry-run --port --host
        --tensor-parallel --tp --gpu-memory-utilization --gpu-mem --max-model-len --daemon --container --discover
        --show-env
    """,
    "launch-cluster.sh": "start stop status exec --launch-script --check-config --setup --discover",
    "hf-download.sh": """
        --list --delete --backup --list-backup --restore --cleanup --backup-dir --force --revision --format --sort
        -c --copy-to --copy-to-host --copy-to-hosts --copy-parallel -u --user --config
    """,
}
KEYS = "CLUSTER_NODES CLUSTER_LINKS ETH_IF IB_IF MASTER_PORT CONTAINER_NAME LOCAL_IP COPY_HOSTS CONTAINER_X"


def rows(heading: str) -> list[tuple[str, str]]:
    """The rows of the table below a heading."""
    section = re.split(r"^#+ ", PAGE.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.strip("|").split(" | ", 1) for line in section.splitlines() if line.startswith("| ")]
    return [(left.strip(), right.strip()) for left, right in cells[1:]]


@pytest.mark.parametrize("script", OPTIONS)
def test_every_option_has_a_row(script: str) -> None:
    left = " ".join(cell for cell, _ in rows(f"### `{script}`"))
    named = set(re.findall(r"(?<![\w-])-{0,2}[a-z][a-z0-9-]*(?![\w-])", left))
    assert set(OPTIONS[script].split()) - named == set()


def test_every_key_of_the_settings_has_a_row() -> None:
    left = " ".join(cell for cell, _ in rows("## What each key of `.env` becomes"))
    assert [key for key in KEYS.split() if key not in left] == []


def test_commands_and_options_named_exist() -> None:
    blocks = "".join(re.findall(r"^```\w*\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))
    spans = re.findall(r"`builder ([^`]+)`", PAGE) + re.findall(r"^builder (.+)$", blocks, flags=re.MULTILINE)
    assert len(spans) > 40
    for span in spans:
        _require(span.split())


def test_keys_of_builder_yaml_named_exist() -> None:
    schema = json.loads((SCHEMAS / "builder.schema.json").read_text())
    top = set(schema["properties"])
    node = set(schema["properties"]["nodes"]["additionalProperties"]["oneOf"][1]["properties"])
    for _, right in [*rows("## What each key of `.env` becomes"), *rows("### Variables of your shell")]:
        keys = set(re.findall(r"`([a-z_]+):(?!//)", right))
        assert keys <= top | node, keys


def _require(words: list[str]) -> None:
    """Fails where ``words`` are no command of ours, or an option among them is none of that command."""
    command: click.Command = main.cli
    context = click.Context(command)
    options = {option for parameter in command.params for option in parameter.opts}
    for position, word in enumerate(words):
        name = word.rstrip(",")
        if word == "--":
            break
        if word.startswith("-"):
            assert name in options, f"{' '.join(words)}: no {name}"
        elif isinstance(command, click.Group) and (position == 0 or not words[position - 1].startswith("-")):
            subcommand = command.get_command(context, name)
            assert subcommand, f"{' '.join(words)}: no command {name}"
            command = subcommand
            options |= {
                option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
            }

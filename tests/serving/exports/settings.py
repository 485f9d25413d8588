"""Container settings for tests of the formats, with everything in them that could be taken for something else."""

from __future__ import annotations

from builder.definitions.container import ContainerSettings, HealthCheck, Mount

HOSTILE = (
    "two words",
    "$HOME ${HOME} $$ $(touch pwned)",
    'it\'s "quoted" `touch pwned`',
    "two\nlines\n",
    "größe 模型 🦙",
    "- : # {} [] & * ! | > % @",
    "yes",
    "0123",
    "",
    " ",
    "\\",
    "~",
)


def hostile(image: str = "small:1", program: tuple[str, ...] = ("tail", "-f", "/dev/null")) -> ContainerSettings:
    """Settings whose every free value is hostile; the container itself only waits."""
    return ContainerSettings(
        name="builder-test",
        image=image,
        argv=(*program, *HOSTILE),
        env={f"V{number}": text for number, text in enumerate(HOSTILE)},
        secrets=("HF_TOKEN",),
        gpus=False,
        network="host",
        ports=(),
        ipc="private",
        shm_size="64m",
        mounts=(
            Mount("/home/ann/.cache/a b", "/root/.cache/x"),
            Mount("/srv/$models", "/root/models", read_only=True, ours=False),
        ),
        labels={f"builder.test.{number}": text for number, text in enumerate(HOSTILE)},
        health=HealthCheck(("true", *HOSTILE), interval=3600),
        ulimits={"nofile": 4096},
        devices=("/dev/null",),
        capabilities=("IPC_LOCK",),
        memory="1g",
        memory_swap="2g",
        pids=4096,
    )

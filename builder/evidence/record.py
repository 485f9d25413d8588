"""The record of one run that tells how a numbered image does: its verdict, its figures, and what they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind = Literal["prove", "bench", "probe"]
Verdict = Literal["pass", "changed", "fail", "unclear"]
Better = Literal["higher", "lower", ""]
Settings: TypeAlias = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Machine:
    """The machine on which a figure was measured; ``memory`` is in bytes. Empty or 0 where there is none, or it is not
    known."""

    gpu: str = ""
    gpus: int = 0
    driver: str = ""
    platform: str = ""
    cpu: str = ""
    memory: int = 0


@dataclass(frozen=True)
class Subject:
    """A run's subject: all that its result belongs to. None where a part was not looked at, or there is none.

    ``image`` is the name that the image had then (``vllm-node-tf5:7``); ``fingerprint`` says which one it is.
    ``revision`` is a commit of the model's repository. ``template`` (``sha256:…``) is the chat template that was in
    effect. ``recipe`` is its path in the project. ``arguments`` (``sha256:…``) covers the serve command, see
    `subjects.of_arguments`; ``overrides`` are the ``--set`` and options of that run alone.
    """

    image: str
    fingerprint: str
    model: str | None = None
    revision: str | None = None
    template: str | None = None
    recipe: str | None = None
    arguments: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None


@dataclass(frozen=True)
class Figure:
    """One measured quantity: ``name`` (``tg``, ``pp``, ``ttfr``, ``acceptance``, ``memory_floor``, ``kv_tokens``,
    ``startup`` …) under the conditions ``at`` (``{"depth": 32768, "concurrency": 1}``), once for each of its
    ``values``. ``unit`` is ``tokens/s``, ``ms``, ``s``, ``bytes``, ``tokens`` or ``ratio``; ``better`` is empty where
    neither more nor less is."""

    name: str
    at: Mapping[str, int | str]
    unit: str
    better: Better
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values) if self.values else 0.0

    @property
    def std(self) -> float:
        """The standard deviation of a sample; 0 of less than two values."""
        if len(self.values) < 2:
            return 0.0
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.values) / (len(self.values) - 1))


@dataclass(frozen=True)
class Finding:
    """One check that did not pass: its name, the place (a conversation, a step), and the difference as text. A limit of
    a template that others publish has the verdict ``pass`` (`proving.template_limits`)."""

    check: str
    at: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Evidence:
    """One run. ``name`` is ``behaviour`` for a proof, else the bench profile or the probe; ``version`` that of the tool
    (``llama-benchy 0.4.0``), and ``set`` (``sha256:…``) the conversations, script or profile: with another one, it is
    another figure. ``started`` is RFC 3339 in UTC.

    ``goldens`` are the token ids of a proof, by conversation, each as the beginning of a SHA-256. ``raw`` is the digest
    of the tool's whole output (`store.raw`). ``accepted`` is the note with which changes were accepted as meant; the
    verdict then is ``pass``. ``foreign`` tells where a run of others came from, and is empty for the project's own.
    ``sequence`` is its place among the runs of its number, which clocks have no part in; `store.add` gives it.
    """

    kind: Kind
    name: str
    version: str
    set: str
    started: str
    seconds: float
    subject: Subject
    verdict: Verdict
    sampling: Settings = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    goldens: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None
    accepted: str = ""
    foreign: str = ""
    sequence: int = 0

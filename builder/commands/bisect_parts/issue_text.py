"""The text for an upstream issue: what was found, and everything that it takes to see it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.commands.bisect_parts import words

if TYPE_CHECKING:
    from builder.commands.bisect_parts.report import BisectReport, FoundCulprit
    from builder.commands.bisect_parts.spans import NumberSpan

_FILES = 20


def write(report: BisectReport, span: NumberSpan) -> str:
    """The text, in Markdown. Titles and names of others are quoted as code, so that they cannot be anything else."""
    bisection = report.bisection
    verb = "mended" if bisection.find_fix else "broken"
    lines = [f"# {bisection.target}: {verb} by {', '.join(each.culprit.unit for each in report.culprits)}", ""]
    for each in report.culprits:
        lines += _culprit(each)
    lines += ["## How it was found", ""]
    for done in bisection.done:
        outcome = words.of_trial(done).strip()
        lines.append(f"- {_quoted(words.of_candidate(done.trial.candidate, bisection.repository))}: {_quoted(outcome)}")
    judge = bisection.judge
    lines += ["", f"The verdict is that of {_judge(judge.kind, judge.name)}.", "", "## How to see it again", ""]
    folders = (
        "The folders `good` and `bad` beside this text are build directories: `docker buildx bake --load --set "
        f"image.tags=NAME` in one of them builds the image for {bisection.platform}. Where one is missing, it is the "
        f"number {span.old} or {span.new} itself, from `builds/`."
    )
    lines += [folders, ""]
    versions = _versions(span)
    if versions:
        lines += ["| | good | bad |", "|---|---|---|", *versions, ""]
    if report.reverted:
        lines += [f"Taking it back: {report.reverted}.", ""]
    return "\n".join(lines)


def _culprit(named: FoundCulprit) -> list[str]:
    culprit, commit = named.culprit, named.commit
    lines = [f"**{culprit.unit}**", ""]
    if culprit.between:
        lines += [f"One of {len(culprit.between) + 1}: those between could not be tried.", ""]
    if commit:
        lines += [
            f"- commit {commit.commit} of {named.address}",
            f"- {_quoted(commit.title)}",
            f"- by {_quoted(commit.author)}, {commit.date}",
            f"- the one before: {culprit.good}",
            *(f"- changes {_quoted(file)}" for file in commit.files[:_FILES]),
            "",
        ]
    elif named.text:
        fence = "`" * max(3, _longest_run(named.text) + 1)
        lines += [f"{fence}diff", named.text.rstrip("\n"), fence, ""]
    return lines


def _versions(span: NumberSpan) -> list[str]:
    """The sources that differ, for readers who do not build the images."""
    trees = [tree for part in (span.builds.parts if span.builds else ()) for tree in part.trees]
    return [f"| {tree.name} | {_quoted(tree.old)} | {_quoted(tree.new)} |" for tree in trees]


def _judge(kind: str, name: str) -> str:
    names = {"script": f"the script {_quoted(name)}", "probe": f"the probe {_quoted(name)}", "user": "the user"}
    return names.get(kind, "`builder prove`, which asks the image's own front end without a GPU")


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    mark = "`" * (_longest_run(line) + 1)
    return f"{mark}{line}{mark}" if not line.startswith("`") else f"{mark} {line} {mark}"


def _longest_run(text: str) -> int:
    runs = "".join(char if char == "`" else " " for char in text).split()
    return max(map(len, runs), default=0)

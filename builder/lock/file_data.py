"""Converting a lock to the data of its file, and back.

In the file, the block of a number holds its pairings and its sequence among the current numbers; in a lock, a model has
its pairings and a repository the order of its numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.lock import sequences
from builder.lock.model import VERSION, ImageName, Lock, Model, Pairing, Repository
from builder.lock.records import FILE, NumberBlock

if TYPE_CHECKING:
    from builder.lock.lines import Data

    Numbers = dict[int, NumberBlock]


def lock_of(data: Data) -> Lock:
    """Converts the data of a file to the lock. Raises WrongError with the path to all that is wrong."""
    sections = FILE.read(data)
    blocks = sections.get("images", {})
    numbers: dict[str, Numbers] = {name: block.get("numbers", {}) for name, block in blocks.items()}
    images = {name: _repository(block.get("next", 1), numbers[name]) for name, block in blocks.items()}
    return Lock(sections.get("definitions", {}), images, _models(numbers))


def data_of(lock: Lock) -> dict[str, Any]:
    """Converts a lock to the data of its file: dicts and lists in its order, numbers and truth values as they are."""
    pairings = _pairings(lock)
    images = {name: _block(name, repository, pairings) for name, repository in lock.images.items()}
    data: dict[str, Any] = FILE.write({"version": VERSION, "definitions": lock.pins, "images": images})
    return data


def _repository(next_number: int, numbers: Numbers) -> Repository:
    order = sequences.latest_first({number: block.sequence for number, block in numbers.items() if block.sequence})
    images = {number: block.image for number, block in numbers.items()}
    above = max(images, default=0) + 1
    return Repository(max(next_number, above), order[0] if order else None, order[1:], images)


def _models(repositories: dict[str, Numbers]) -> dict[str, Model]:
    pairings: dict[str, dict[ImageName, Pairing]] = {}
    order: dict[str, dict[ImageName, int]] = {}
    for repository, numbers in repositories.items():
        for number, block in numbers.items():
            for model, fields in block.models.items():
                name = ImageName(repository, number)
                order.setdefault(model, {})[name] = fields.pop("sequence")
                pairings.setdefault(model, {})[name] = Pairing(name, **fields)
    models = {}
    for model in sorted(pairings):
        latest, *before = (pairings[model][name] for name in sequences.latest_first(order[model]))
        models[model] = Model(latest, tuple(before))
    return models


def _pairings(lock: Lock) -> dict[ImageName, dict[str, dict[str, Any]]]:
    """The pairings with each image: by model, the fields of each and its sequence."""
    pairings: dict[ImageName, dict[str, dict[str, Any]]] = {}
    for name, model in lock.models.items():
        for pairing, sequence in sequences.of((model.pairing, *model.previous)).items():
            pairings.setdefault(pairing.image, {})[name] = {**vars(pairing), "sequence": sequence}
    return pairings


def _block(name: str, repository: Repository, pairings: dict[ImageName, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    order = sequences.of((*([repository.current] if repository.current else []), *repository.previous))
    numbers = {
        number: NumberBlock(image, order.get(number), pairings.get(ImageName(name, number), {}))
        for number, image in repository.numbers.items()
    }
    above = max(numbers, default=0) + 1
    return {"next": repository.next if repository.next > above else None, "numbers": numbers}

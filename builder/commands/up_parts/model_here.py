"""The model that is served, brought into the cache where it is not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from builder.commands import download
from builder.commands.up_parts.part import UpPart
from builder.definitions.recipes import command
from builder.errors import SourceError
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from builder.commands.download import DownloadRequest
    from builder.definitions.recipes.recipe import Recipe
    from builder.workspace import Workspace


def ensure(workspace: Workspace, recipe: Recipe, request: DownloadRequest) -> UpPart:
    """Downloads what the cache lacks of the model and its draft model. A folder is left as it is; so is a copy in the
    cache of which the hub cannot be asked. Raises what `download` does."""
    started = time.monotonic()
    model = recipe.model or command.render(recipe, {}, ()).model or ""
    if not model or not huggingface_cache.is_id(model):
        return UpPart("model", model or recipe.name, "left", 0.0, "it is no model of the hub")
    try:
        models = download.run(workspace, request)
    except SourceError as error:
        cached = huggingface_cache.find_model(workspace.environment, model)
        if request.nodes or cached is None or cached.incomplete:
            raise
        seconds = time.monotonic() - started
        return UpPart("model", model, "left", seconds, f"the copy that is here serves: {error.message}")
    fetched = any(each.fetched for each in models)
    names = ", ".join(f"{each.model} at {each.commit[:7]}" for each in models)
    return UpPart("model", names, "downloaded" if fetched else "here", time.monotonic() - started)

"""Export as the model list of LiteLLM's proxy, which leads requests to servers that run already:
https://docs.litellm.ai/docs/proxy/configs, https://docs.litellm.ai/docs/providers/vllm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.serving.exports.routing import unique_names
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.serving.exports.routing import RoutedModel


def render(models: Sequence[RoutedModel], address: str) -> str:
    """Returns the configuration; ``address`` is the servers' host for the proxy. Two entries of one name would be two
    servers to LiteLLM, among which it chooses: so each name is of one model."""
    host = f"[{address}]" if ":" in address else address
    further = unique_names(models)
    entries = [
        {
            "model_name": name,
            "litellm_params": {
                "model": f"hosted_vllm/{model.served[0] if model.served else model.model}",
                "api_base": f"http://{host}:{model.port}/v1",
            },
            "model_info": {"image": model.image},
        }
        for model in models
        for name in (model.model, *further[model.model])
    ]
    text = yaml_file.dump({"model_list": entries})
    return f"# Written by `builder export`. It leads to servers that run: `builder run MODEL` starts one.\n{text}"

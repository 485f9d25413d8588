"""Scripts that run in the Python that has vLLM, on a GPU: each prints one JSON object as its last line."""

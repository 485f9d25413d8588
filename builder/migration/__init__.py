"""A checkout of the community's builder, spark-vllm-docker, taken over into a project."""

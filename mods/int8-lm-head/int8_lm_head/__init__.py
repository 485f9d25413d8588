"""The head of a language model in INT8. vLLM calls ``hook.after_loading``."""

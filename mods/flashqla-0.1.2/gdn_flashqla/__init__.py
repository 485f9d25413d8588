"""FlashQLA for the chunked prefill of gated delta nets (Qwen3-Next, Qwen3.5 and later). vLLM calls ``hook.hook``."""

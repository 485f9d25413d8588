"""Writes the config and the tokenizer of a GPT-OSS into a folder, without weights, from the vocabulary that vLLM brings
for its format. Runs inside the image: `python3 gpt_oss_files.py FOLDER`."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

SIZE, SPECIAL = 199_998, 200_019  # ordinary tokens, and all of them
CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "max_position_embeddings": 131_072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"],
    "torch_dtype": "bfloat16",
    "eos_token_id": 200_002,
}


def characters() -> list[str]:
    """The character of each byte in the files of byte-level tokenizers."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return [bytes_to_unicode()[byte] for byte in range(256)]


def parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two tokens that a token is merged from."""
    found = [bytes([byte]) for byte in token]
    while True:
        joined = [ranks.get(a + b, SIZE) for a, b in pairwise(found)]
        least = min(joined, default=SIZE)
        if least >= ranks[token]:
            return found
        at = joined.index(least)
        found[at : at + 2] = [found[at] + found[at + 1]]


def main(folder: Path) -> None:
    from openai_harmony import load_harmony_encoding

    inner = load_harmony_encoding("HarmonyGptOss")._inner
    ranks = {bytes(inner.decode_bytes([rank])): rank for rank in range(SIZE)}
    written = characters()

    def shown(token: bytes) -> str:
        return "".join(written[byte] for byte in token)

    merges = [parts(token, ranks) for token in ranks if len(token) > 1]
    special = {rank: inner.decode_utf8([rank]) for rank in range(SIZE, SPECIAL)}
    added = [
        {"id": rank, "content": text, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for rank, text in special.items()
    ]
    # The model's own cuts texts otherwise before pairs are merged; what they decode to is the same.
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {shown(token): rank for token, rank in ranks.items()},
            "merges": [[shown(part) for part in pair] for pair in merges if len(pair) == 2],
        },
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|return|>", "model_max_length": 131_072}
    contents = {"config.json": CONFIG, "tokenizer.json": tokenizer, "tokenizer_config.json": settings}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

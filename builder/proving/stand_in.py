"""A tokenizer and a config that stand in for a model's own, where those cannot be had.

One token for each byte, and one for each mark of the families: the text of a template and what a parser does with it
are proven as with the model's own; the numbers of tokens are others.
"""

from __future__ import annotations

import json
from typing import Any

from builder.proving import byte_characters

END = "<|im_end|>"
# vLLM refuses a `--max-model-len` above the model's own. A recipe's is that of its real model, so no recipe's is above.
CONTEXT = 1 << 24
# What templates write and parsers look for as single tokens.
_MARKS = (
    *("<|endoftext|>", "<|im_start|>", END, "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|begin_of_text|>"),
    *("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def files() -> dict[str, bytes]:
    """The files of the model's folder, by name."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters.characters())}
    ids = {mark: 256 + at for at, mark in enumerate(_MARKS)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(mark, ident) for mark, ident in ids.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        # A template that writes it would break on its absence, which is no fault of its own.
        "bos_token": "<|begin_of_text|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 256 + len(_MARKS),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "torch_dtype": "bfloat16",
        "eos_token_id": ids[END],
    }
    contents = {"tokenizer.json": tokenizer, "tokenizer_config.json": settings, "config.json": config}
    return {name: json.dumps(content).encode() for name, content in contents.items()}


def _added(mark: str, ident: int) -> dict[str, Any]:
    return {
        "id": ident,
        "content": mark,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }

"""A random Llama of 3.4 million parameters as a GGUF file: for real servers, without a download.

``tiny_llama.write(path)`` needs numpy, tokenizers and gguf. The tokenizer is trained on the texts
that Python's own help holds. The first hidden channel is constant through all layers, and the head
uses it as a bias against tokens that are special or not ASCII: those are practically never sampled,
so an answer is as long as ``max_tokens`` says and each token is a valid piece of text.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, VOCABULARY = 256, 4, 4, 2, 512, 2048
HEAD = HIDDEN // HEADS
CONTEXT = 4096
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "torch_dtype": "float16",
}
"""What its ``config.json`` would say."""
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONSTANT, BIAS, QUIET = 4.0, -10.0, 0.3


def write(path: Path) -> None:
    """Write the model; the same file each time."""
    tokenizer = trained()
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(HIDDEN)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_dimension_count(HEAD)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10_000.0)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    add_tokenizer(out, tokenizer)
    for name, values in weights(tokenizer).items():
        out.add_tensor(name, values.astype(np.float32 if values.ndim == 1 else np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def trained() -> Tokenizer:
    """Return a byte-level BPE tokenizer."""
    from pydoc_data.topics import topics

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    return tokenizer


def add_tokenizer(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    out.add_vocab_size(VOCABULARY)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([tokenizer.id_to_token(i) for i in range(VOCABULARY)])
    out.add_token_types([control if i < len(SPECIAL) else normal for i in range(VOCABULARY)])
    out.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)
    out.add_chat_template(CHAT)


def weights(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def drawn(*shape: int, spread: float = HIDDEN**-0.5) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * spread

    embedding, head = drawn(VOCABULARY, HIDDEN, spread=1.0), drawn(VOCABULARY, HIDDEN)
    embedding[:, 0] = CONSTANT
    head[:, 0] = np.where(sampled(tokenizer), 0.0, BIAS)
    found = {"token_embd.weight": embedding, "output.weight": head}
    found["output_norm.weight"] = np.ones(HIDDEN)
    for layer in range(LAYERS):
        attended = drawn(HIDDEN, HIDDEN, spread=QUIET * HIDDEN**-0.5)
        passed = drawn(HIDDEN, INNER, spread=QUIET * INNER**-0.5)
        attended[0] = passed[0] = 0.0
        own = {
            "attn_norm": np.ones(HIDDEN),
            "attn_q": drawn(HIDDEN, HIDDEN),
            "attn_k": drawn(KV_HEADS * HEAD, HIDDEN),
            "attn_v": drawn(KV_HEADS * HEAD, HIDDEN),
            "attn_output": attended,
            "ffn_norm": np.ones(HIDDEN),
            "ffn_gate": drawn(INNER, HIDDEN),
            "ffn_up": drawn(INNER, HIDDEN),
            "ffn_down": passed,
        }
        found |= {f"blk.{layer}.{name}.weight": values for name, values in own.items()}
    return found


def sampled(tokenizer: Tokenizer) -> np.ndarray:
    """Return which tokens may be sampled: printable ASCII, with a space before (Ġ)."""
    allowed = {chr(code) for code in range(33, 127)} | {"Ġ"}
    pieces = [tokenizer.id_to_token(i) for i in range(VOCABULARY)]
    return np.array([i >= len(SPECIAL) and set(p) <= allowed for i, p in enumerate(pieces)])

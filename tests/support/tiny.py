"""Tiny random models: configs, checkpoints in Hugging Face's layout on disk, a byte tokenizer.

Weights are wider than a trained model's, so that arg-maxes are far apart and layers do something.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.models.config import ModelConfig, RopeScaling
from engine.models.decoder import Decoder
from engine.models.registry import build_decoder
from engine.weights.checkpoint import Checkpoint
from engine.weights.loading import fill_decoder
from engine.weights.names import expected_names, pieces_of
from parallel.mesh import Mesh

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 256 + SPECIAL_TOKENS.index("<|im_end|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA2 = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    intermediate_size=44,
    num_layers=3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    max_position_embeddings=256,
    eos_token_ids=(EOS_ID,),
)
"""Every query head has its own kv head, no scaling, own head."""

LLAMA33 = replace(
    LLAMA2,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    rope_theta=500000.0,
    rope_scaling=RopeScaling(
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
)
"""Grouped queries, llama3 scaling whose three zones all occur among the four frequencies."""

QWEN3 = replace(LLAMA33, architecture="qwen3", head_dim=16, rope_scaling=None, rope_theta=1000000.0)
"""Query and key norms, head_dim apart from hidden_size / num_heads."""

SMOLLM = replace(
    LLAMA2, hidden_size=36, num_heads=9, num_kv_heads=3, head_dim=8, tie_word_embeddings=True
)
"""SmolLM2's head counts: tp 2 is uneven. Tied."""


def random_tensors(config: ModelConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """Every checkpoint tensor of a model, random, in fp32."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {piece.name: piece.shape for piece in _all_pieces(config)}
    assert shapes.keys() == expected_names(config)
    tensors = {}
    for name in sorted(shapes):
        noise = torch.randn(shapes[name], generator=generator)
        is_norm = len(shapes[name]) == 1
        tensors[name] = 1 + 0.1 * noise if is_norm else noise * 1.5 / shapes[name][-1] ** 0.5
    return tensors


def hf_config(config: ModelConfig) -> dict[str, Any]:
    """The model's ``config.json``."""
    names = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope |= {
            "rope_type": config.rope_scaling.kind,
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": (
                config.rope_scaling.original_max_position_embeddings
            ),
        }
    return {
        "architectures": [names[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": rope,
        "tie_word_embeddings": config.tie_word_embeddings,
        "max_position_embeddings": config.max_position_embeddings,
        "eos_token_id": list(config.eos_token_ids),
        "hidden_act": "silu",
    }


def write_checkpoint(
    directory: Path, config: ModelConfig, *, seed: int = 0, num_files: int = 1
) -> Path:
    """A model directory with random weights and a byte tokenizer, in ``num_files`` files."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config(config)))
    write_tokenizer(directory)
    write_tensors(directory, random_tensors(config, seed=seed), num_files=num_files)
    return directory


def write_tensors(directory: Path, tensors: dict[str, Tensor], *, num_files: int = 1) -> None:
    """One ``model.safetensors``, or several files and their index."""
    if num_files == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number in range(num_files):
        file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        part = names[number::num_files]
        save_file({name: tensors[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(directory: Path) -> None:
    """A tokenizer without merges: one token per byte, three special tokens, a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def load_decoder(
    directory: Path, config: ModelConfig, *, dtype: torch.dtype, mesh: Mesh | None = None
) -> Decoder:
    """A rank's decoder from a directory that ``write_checkpoint`` made."""
    mesh = Mesh.single() if mesh is None else mesh
    length = config.max_position_embeddings
    decoder = build_decoder(config, mesh=mesh, dtype=dtype, max_model_len=length)
    fill_decoder(decoder, Checkpoint(directory), mesh)
    return decoder


def _all_pieces(config: ModelConfig) -> list[Any]:
    single = build_decoder(config, mesh=Mesh.single(), dtype=torch.float32, max_model_len=1)
    return [piece for name, _ in single.named_parameters() for piece in pieces_of(name, config)]

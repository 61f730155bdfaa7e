"""A GGUF file to a Hugging Face directory, once: dequantised weights in fp32, config, tokenizer.

fp32, so that every dtype we run is a cast of the same numbers. The conversion is ours because
transformers' takes the whole model into memory and needs accelerate; a test shows that both give
the same bits. Layout of the format and the rotary permutation of Llama's query and key rows:
llama.cpp, ``gguf-py`` and ``conversion``.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from torch import Tensor

from engine.weights.checkpoint import INDEX_NAME
from engine.weights.gguf_tokenizer import save_gguf_tokenizer

_VERSION = 2
"""Raise it when the output changes: old conversions are then made anew."""

_SHARD_BYTES = 1 << 30

_HF_NAMES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}

_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


def convert_gguf(file: Path, cache_dir: Path) -> Path:
    """The converted directory, made on first use; several processes may ask at once.

    Raises:
        ValueError: not a GGUF file, one that holds a model we do not run, or nowhere to write.
    """
    target = cache_dir / "gguf" / f"{file.stem}-{_fingerprint(file)}"
    if target.is_dir():
        return target
    try:
        _convert_once(file, target)
    except OSError as error:
        raise ValueError(
            f"{file} cannot be converted into {target.parent}: {error.strerror}: set "
            "XDG_CACHE_HOME to a folder with room for the model in fp32"
        ) from error
    return target


def _convert_once(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f"{target.name}.lock"):
        if not target.is_dir():
            _convert_atomically(file, target)


def _convert_atomically(file: Path, target: Path) -> None:
    """Write beside the target and rename, so that a directory of that name is always whole."""
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        _convert(file, partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(file: Path, directory: Path) -> None:
    reader = _open(file)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(file, metadata, {tensor.name for tensor in reader.tensors})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_gguf_tokenizer(file, metadata, directory)
    _save_shards(_tensors(reader, config), directory)


def _save_shards(tensors: Iterator[tuple[str, Tensor]], directory: Path) -> None:
    """Shards with an index that transformers and vLLM read too, which insist on a total size."""
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    total_bytes = 0

    def flush() -> None:
        name = f"model-{len(set(weight_map.values())):05d}.safetensors"
        save_file(shard, directory / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, tensor in tensors:
        shard[name] = tensor
        total_bytes += tensor.nbytes
        if sum(held.nbytes for held in shard.values()) > _SHARD_BYTES:
            flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (directory / INDEX_NAME).write_text(json.dumps(index, indent=0) + "\n")


def _tensors(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        *prefix, kind, _ = tensor.name.split(".")
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if kind in heads and config["model_type"] == "llama":
            weight = _unpermute(weight, heads[kind])
        layer = f"model.layers.{prefix[1]}." if prefix else ""
        yield f"{layer}{_TENSOR_NAMES[kind]}.weight", weight.float().contiguous()


def _unpermute(weight_OI: Tensor, num_heads: int) -> Tensor:
    """GGUF interleaves the rotary halves of a Llama head: rows 2i, 2i+1 are our i, i + D/2."""
    rows, columns = weight_OI.shape
    pairs = weight_OI.view(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def _config(file: Path, metadata: dict[str, Any], names: set[str]) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture not in _HF_NAMES:
        raise ValueError(
            f"{file}: architecture {architecture} is not supported in a GGUF file: allowed are "
            f"{', '.join(_HF_NAMES)}"
        )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in names:
        raise ValueError(
            f"{file}: scaled rotary embeddings are not supported in a GGUF file: use the "
            "model's Hugging Face directory"
        )
    for name in sorted(names):
        if name.split(".")[-2] not in _TENSOR_NAMES or not name.endswith(".weight"):
            raise ValueError(f"{file}: tensor {name} has no place in a {architecture} model")
    config = _shape(file, metadata, architecture)
    config["tie_word_embeddings"] = "output.weight" not in names
    return config


def _shape(file: Path, metadata: dict[str, Any], architecture: str) -> dict[str, Any]:
    def get(name: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{name}", default)
        if value is None:
            raise ValueError(f"{file}: the field {architecture}.{name} is missing")
        return value

    heads = get("attention.head_count")
    return {
        "architectures": [_HF_NAMES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", get("embedding_length") // heads),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": get("context_length"),
        "rope_theta": get("rope.freq_base", 10000.0),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
    }


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"{file} is not a whole GGUF file: {error}") from error


def _fingerprint(file: Path) -> str:
    """A name for the content: its size and both ends (the metadata and the last tensors)."""
    size = file.stat().st_size
    digest = hashlib.blake2b(f"{_VERSION}:{size}".encode(), digest_size=6)
    with file.open("rb") as stream:
        digest.update(stream.read(1 << 20))
        stream.seek(max(size - (1 << 20), 0))
        digest.update(stream.read())
    return digest.hexdigest()

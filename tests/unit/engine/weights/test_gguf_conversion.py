"""A GGUF file converts to the checkpoint it was made from, once, whole or not at all."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from engine.models.config import ModelConfig
from engine.tokenizer import load_tokenizer
from engine.weights import load_model, read_model_config
from engine.weights.gguf_conversion import convert_gguf
from parallel.mesh import Mesh
from tests.support.tiny import CHAT_TEMPLATE, EOS_ID, LLAMA2, QWEN3, SMOLLM, random_tensors
from tests.support.tiny import SPECIAL_TOKENS as SPECIAL

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def permute(weight: Tensor, num_heads: int) -> Tensor:
    """llama.cpp's order of Llama's query and key rows: 0, D/2, 1, D/2 + 1, ..."""
    rows = weight.shape[0]
    half = rows // num_heads // 2
    order = [
        head * 2 * half + part * half + i
        for head in range(num_heads)
        for i in range(half)
        for part in range(2)
    ]
    return weight[order]


def write_gguf(
    file: Path,
    config: ModelConfig,
    *,
    scaled: bool = False,
    pre: str = "smollm",
    architecture: str | None = None,
) -> Path:
    """What llama.cpp's converter would write for a tiny model, unquantised."""
    architecture = architecture or config.architecture
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    if scaled:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    two_bytes_less = sorted(ByteLevel.alphabet())[:-2]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*two_bytes_less, "12", "ĊĊ", *SPECIAL])
    writer.add_token_types([1] * 256 + [3] * 3)
    writer.add_token_merges(["1 2", "Ċ Ċ"])
    writer.add_eos_token_id(EOS_ID)
    writer.add_chat_template(CHAT_TEMPLATE)
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name, tensor in random_tensors(config).items():
        *layer, kind = name.removesuffix(".weight").split(".", 3) if ".layers." in name else [name]
        short = NAMES[kind.removesuffix(".weight")]
        prefix = f"blk.{layer[2]}." if layer else ""
        if short in heads and config.architecture == "llama":
            tensor = permute(tensor, heads[short])
        writer.add_tensor(f"{prefix}{short}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("config", [SMOLLM, LLAMA2, QWEN3], ids=["smollm", "llama2", "qwen3"])
def test_weights_and_config_come_back_exactly(config: ModelConfig, tmp_path: Path) -> None:
    config = replace(config, rms_norm_eps=2**-17)
    file = write_gguf(tmp_path / "tiny.gguf", config)
    directory = convert_gguf(file, tmp_path / "cache")
    assert read_model_config(directory) == config
    decoder = load_model(
        str(file),
        dtype=torch.float32,
        mesh=Mesh.single(),
        max_model_len=16,
        cache_dir=tmp_path / "cache",
    )
    tensors = random_tensors(config)
    query = decoder.get_parameter("layers.2.attention.qkv.weight")[: config.query_size]
    assert torch.equal(query, tensors["model.layers.2.self_attn.q_proj.weight"])
    head = decoder.get_parameter("head.weight")
    tied = config.tie_word_embeddings
    assert torch.equal(head, tensors["model.embed_tokens.weight" if tied else "lm_head.weight"])


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    """Digits are split before words, so that two line ends before a digit still merge."""
    directory = convert_gguf(write_gguf(tmp_path / "tiny.gguf", SMOLLM), tmp_path)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.eos_token_ids == (EOS_ID,)
    assert len(tokenizer.encode("12")) == 2
    assert len(tokenizer.encode("\n\n3")) == 2
    assert tokenizer.decode(tokenizer.encode("héllo 12\n\n3")) == "héllo 12\n\n3"
    assert tokenizer.chat([{"role": "user", "content": "x"}])[0] == EOS_ID - 1


def test_a_second_call_converts_nothing(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", SMOLLM)
    directory = convert_gguf(file, tmp_path / "cache")
    stamp = (directory / "config.json").stat().st_mtime_ns
    assert convert_gguf(file, tmp_path / "cache") == directory
    assert (directory / "config.json").stat().st_mtime_ns == stamp


def test_another_file_of_the_same_name_is_another_conversion(tmp_path: Path) -> None:
    first = convert_gguf(write_gguf(tmp_path / "tiny.gguf", SMOLLM), tmp_path / "cache")
    second = convert_gguf(write_gguf(tmp_path / "tiny.gguf", LLAMA2), tmp_path / "cache")
    assert first != second
    assert read_model_config(second).num_heads == LLAMA2.num_heads


@pytest.mark.slow
def test_processes_that_convert_at_once_get_one_whole_directory(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", SMOLLM)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        found = pool.starmap(convert_gguf, [(file, tmp_path / "cache")] * 6)
    assert len(set(found)) == 1
    left = {path.name for path in (tmp_path / "cache" / "gguf").iterdir() if path.is_dir()}
    assert left == {found[0].name}
    json.loads((found[0] / "model.safetensors.index.json").read_text())


def test_a_failed_conversion_leaves_no_directory(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", SMOLLM, pre="some-other")
    with pytest.raises(ValueError, match="pre-tokenizer some-other is not supported"):
        convert_gguf(file, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache" / "gguf").iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", SMOLLM)
    (tmp_path / "taken").write_text("a file where a folder should be")
    with pytest.raises(ValueError, match=r"cannot be converted into .*taken.*set XDG_CACHE_HOME"):
        convert_gguf(file, tmp_path / "taken")


def test_what_we_cannot_run_is_refused(tmp_path: Path) -> None:
    mamba = write_gguf(tmp_path / "mamba.gguf", SMOLLM, architecture="mamba")
    with pytest.raises(ValueError, match=r"architecture mamba is not supported .* llama, qwen3"):
        convert_gguf(mamba, tmp_path)
    scaled = write_gguf(tmp_path / "scaled.gguf", SMOLLM, scaled=True)
    with pytest.raises(ValueError, match="scaled rotary embeddings are not supported"):
        convert_gguf(scaled, tmp_path)


def test_a_file_that_is_no_gguf_is_named(tmp_path: Path) -> None:
    file = tmp_path / "fake.gguf"
    file.write_bytes(b"not a model at all, but long enough for a header")
    with pytest.raises(ValueError, match=r"fake\.gguf is not a whole GGUF file"):
        convert_gguf(file, tmp_path)


def test_a_gguf_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", SMOLLM)
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ValueError, match=r"tiny\.gguf is not a whole GGUF file"):
        convert_gguf(file, tmp_path)

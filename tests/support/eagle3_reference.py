"""EAGLE-3 by the paper's equations: position by position, head by head, no cache; and its files.

Everything is recomputed for every token. Only the checkpoint's own tensors are used, under
SafeAILab's names, and ``d2t`` as the offsets that it stores.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.tiny import write_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceHead:
    """Sizes, switches and random tensors of one head; all vectors are one-dimensional."""

    hidden: int = 32
    target: int = 32
    inner: int = 20
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    vocab_size: int = 259
    draft_vocab_size: int = 40
    num_taps: int = 3
    eps: float = 1e-5
    theta: float = 10000.0
    position_factor: float = 1.0
    """Linear rotary scaling: positions are divided by it."""
    norm_before_residual: bool = False
    norm_before_logits: bool = True
    norm_feedback: bool = False
    fc_norm: bool = False
    own_embedding: bool = False
    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tensors:
            self.tensors.update(self._random())

    def _random(self) -> dict[str, Tensor]:
        """Weights wide enough that every switch changes the result."""
        generator = torch.Generator().manual_seed(self.seed)
        tensors = {}
        for name, shape in self._shapes().items():
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            is_norm = len(shape) == 1
            tensors[name] = 1 + 0.3 * noise if is_norm else noise * 1.5 / shape[-1] ** 0.5
        order = torch.randperm(self.vocab_size, generator=generator)
        ids = order[: self.draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(self.vocab_size, dtype=torch.bool)
        tensors["t2d"][ids] = True
        return tensors

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden, self.inner
        query, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, self.num_taps * self.target),
            "midlayer.hidden_norm.weight": (hidden,),
            "midlayer.input_layernorm.weight": (hidden,),
            "midlayer.post_attention_layernorm.weight": (hidden,),
            "midlayer.self_attn.q_proj.weight": (query, 2 * hidden),
            "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
            "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
            "midlayer.self_attn.o_proj.weight": (hidden, query),
            "midlayer.mlp.gate_proj.weight": (inner, hidden),
            "midlayer.mlp.up_proj.weight": (inner, hidden),
            "midlayer.mlp.down_proj.weight": (hidden, inner),
            "norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
        }
        if self.own_embedding:
            shapes["embed_tokens.weight"] = (self.vocab_size, hidden)
        if self.fc_norm:
            shapes |= {f"fc_norm.{tap}.weight": (self.target,) for tap in range(self.num_taps)}
        return shapes

    def feature(self, states: list[Tensor]) -> Tensor:
        """One position's tapped states, low to high, to its feature."""
        if self.fc_norm:
            states = [self.rms(s, f"fc_norm.{tap}") for tap, s in enumerate(states)]
        return self.tensors["fc.weight"] @ torch.cat(states)

    def outputs(self, features: list[Tensor], embeddings: list[Tensor]) -> list[Tensor]:
        """The layer's output h for every position; ``embeddings[t]`` is that of token t + 1."""
        queries, keys, values, residuals = [], [], [], []
        for position, (feature, embedding) in enumerate(zip(features, embeddings, strict=True)):
            normed = self.rms(feature, "midlayer.hidden_norm")
            joined = torch.cat([self.rms(embedding, "midlayer.input_layernorm"), normed])
            residuals.append(normed if self.norm_before_residual else feature)
            queries.append([self.turn(head, position) for head in self.heads("q_proj", joined)])
            keys.append([self.turn(head, position) for head in self.heads("k_proj", joined)])
            values.append(self.heads("v_proj", joined))
        outputs = []
        for position, residual in enumerate(residuals):
            attended = torch.cat(
                [
                    self.attend(
                        queries[position][head],
                        [keys[s][self.kv_head(head)] for s in range(position + 1)],
                        [values[s][self.kv_head(head)] for s in range(position + 1)],
                    )
                    for head in range(self.num_heads)
                ]
            )
            middle = residual + self.tensors["midlayer.self_attn.o_proj.weight"] @ attended
            outputs.append(middle + self.mlp(middle))
        return outputs

    def logits(self, output: Tensor) -> Tensor:
        """Over the draft vocabulary."""
        normed = self.rms(output, "norm") if self.norm_before_logits else output
        return self.tensors["lm_head.weight"] @ normed

    def next_feature(self, output: Tensor) -> Tensor:
        """What is fed back in place of a verifier's feature."""
        return self.rms(output, "norm") if self.norm_feedback else output

    def token(self, draft_id: int) -> int:
        """The verifier's token that a draft id means."""
        return draft_id + int(self.tensors["d2t"][draft_id])

    def continue_path(
        self, features: list[Tensor], token_ids: list[int], path: list[int], embedding: Tensor
    ) -> list[Tensor]:
        """Logits after the pending token and after each token of a drafted path.

        ``features[t]`` belongs to position t; ``token_ids`` has one token more.
        """
        features, token_ids = list(features), list(token_ids)
        logits = []
        for token in [*path, None]:
            outputs = self.outputs(features, [embedding[token] for token in token_ids[1:]])
            logits.append(self.logits(outputs[-1]))
            if token is not None:
                features.append(self.next_feature(outputs[-1]))
                token_ids.append(token)
        return logits

    def chain(
        self, features: list[Tensor], token_ids: list[int], steps: int, embedding: Tensor
    ) -> tuple[list[int], list[Tensor]]:
        """Greedy draft tokens, and the logits each came from."""
        path: list[int] = []
        while len(path) < steps:
            logits = self.continue_path(features, token_ids, path, embedding)
            path.append(self.token(int(logits[-1].argmax())))
        return path, logits

    def rms(self, vector: Tensor, name: str) -> Tensor:
        """Root-mean-square norm."""
        scale = math.sqrt(sum(float(v) ** 2 for v in vector) / len(vector) + self.eps)
        return vector / scale * self.tensors[f"{name}.weight"]

    def turn(self, head: Tensor, position: int) -> Tensor:
        """Rotate each pair (i, i + D / 2) as a complex number."""
        half = self.head_dim // 2
        turned = head.clone()
        for i in range(half):
            angle = position / self.position_factor * self.theta ** (-2 * i / self.head_dim)
            pair = complex(head[i], head[i + half]) * complex(math.cos(angle), math.sin(angle))
            turned[i], turned[i + half] = pair.real, pair.imag
        return turned

    def heads(self, name: str, joined: Tensor) -> list[Tensor]:
        """A projection's heads."""
        projected = self.tensors[f"midlayer.self_attn.{name}.weight"] @ joined
        return list(projected.split(self.head_dim))  # type: ignore[no-untyped-call]

    def kv_head(self, head: int) -> int:
        """The kv head that a query head reads."""
        return head // (self.num_heads // self.num_kv_heads)

    def attend(self, query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Softmax attention of one head at one position."""
        scores = [math.exp(float(query @ key) / math.sqrt(self.head_dim)) for key in keys]
        total = torch.zeros_like(query)
        for score, value in zip(scores, values, strict=True):
            total += score / sum(scores) * value
        return total

    def mlp(self, middle: Tensor) -> Tensor:
        """SwiGLU."""
        normed = self.rms(middle, "midlayer.post_attention_layernorm")
        gate = self.tensors["midlayer.mlp.gate_proj.weight"] @ normed
        up = self.tensors["midlayer.mlp.up_proj.weight"] @ normed
        return self.tensors["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    def layer_fields(self) -> dict[str, Any]:
        """What every layout says of the decoder layer, rotary embedding apart."""
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": 1,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "vocab_size": self.vocab_size,
            "max_position_embeddings": 64,
        }


def write_raw(directory: Path, head: ReferenceHead, **fields: Any) -> Path:
    """SafeAILab's layout: no rope fields, ``pytorch_model.bin``."""
    config = {"architectures": ["LlamaForCausalLM"], **head.layer_fields()}
    config |= {"draft_vocab_size": head.draft_vocab_size, "bias": False, **fields}
    _write_config(directory, config)
    torch.save(head.tensors, directory / "pytorch_model.bin")
    return directory


def write_specforge(directory: Path, head: ReferenceHead, **fields: Any) -> Path:
    """SpecForge's and SGLang's layout: one safetensors file."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], **head.layer_fields()}
    config |= {"draft_vocab_size": head.draft_vocab_size, "head_dim": head.head_dim, **fields}
    _write_config(directory, config)
    save_file(head.tensors, directory / "model.safetensors")
    return directory


def write_speculators(
    directory: Path, head: ReferenceHead, layer: dict[str, Any], **fields: Any
) -> Path:
    """Speculators' layout: nested, ``layers.0.*``, here in two files and an index."""
    inner = {"model_type": "llama", **head.layer_fields(), "head_dim": head.head_dim, **layer}
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": inner}
    _write_config(directory, {**config, "draft_vocab_size": head.draft_vocab_size, **fields})
    renamed = {name.replace("midlayer.", "layers.0."): t for name, t in head.tensors.items()}
    write_tensors(directory, renamed, num_files=2)
    return directory


def _write_config(directory: Path, config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))

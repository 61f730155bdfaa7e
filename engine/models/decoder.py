"""The decoder: Llama 2, 3, 3.1, 3.3 and Qwen3 in single-device code that never mentions a rank.

Layers live in a dict keyed by their global index and both ends are optional, so that the same
forward serves every pipeline stage (``parallel.pipeline``). Local head counts come from the shapes
of the weights, so the same code serves every tensor-parallel rank (``parallel.tensor``).

Legend: R rows of the step's block, H hidden, Q query heads, K kv heads, D head_dim, L rows whose
logits are wanted, V vocabulary (the local part of it).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.interfaces import FusedTop, Site, StepContext, TopTokens
from engine.models.config import ModelConfig
from engine.models.layers import Embedding, Linear, RMSNorm, Rotary, wide_dtype


class Attention(nn.Module):
    """The attention sub-block with its norm: returns what is added to the residual stream."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        rotary: Rotary,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
        self.index = index
        self.head_dim = config.head_dim
        self.rotary = rotary
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype=dtype, device=device)
        self.qkv: nn.Module = Linear(hidden, query + 2 * kv, dtype=dtype, device=device)
        self.o: nn.Module = Linear(query, hidden, dtype=dtype, device=device)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.has_qk_norm:
            eps = config.rms_norm_eps
            self.q_norm = RMSNorm(config.head_dim, eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(config.head_dim, eps, dtype=dtype, device=device)

    @property
    def num_heads(self) -> int:
        """Query heads held here."""
        return int(self.o.in_features) // self.head_dim  # type: ignore[arg-type]

    @property
    def num_kv_heads(self) -> int:
        """Kv heads held here."""
        qkv_heads = int(self.qkv.out_features) // self.head_dim  # type: ignore[arg-type]
        return (qkv_heads - self.num_heads) // 2

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H]."""
        rows, num_heads, num_kv_heads = hidden_RH.shape[0], self.num_heads, self.num_kv_heads
        qkv = self.qkv(self.norm(hidden_RH)).view(rows, -1, self.head_dim)
        query_key = self._normalise(qkv.narrow(1, 0, num_heads + num_kv_heads))
        turned = self.rotary(query_key, context.positions)
        query_RQD = turned.narrow(1, 0, num_heads)
        key_RKD = turned.narrow(1, num_heads, num_kv_heads)
        value_RKD = qkv.narrow(1, num_heads + num_kv_heads, num_kv_heads)
        output_RQD = context.attend(self.index, query_RQD, key_RKD, value_RKD)
        added: Tensor = self.o(output_RQD.reshape(rows, -1))
        return added

    def _normalise(self, query_key: Tensor) -> Tensor:
        """Qwen3 normalises every query and key head; Llama does not."""
        if self.q_norm is None or self.k_norm is None:
            return query_key
        query = query_key.narrow(1, 0, self.num_heads)
        key = query_key.narrow(1, self.num_heads, self.num_kv_heads)
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)


class GatedMLP(nn.Module):
    """The MLP sub-block (SwiGLU) with its norm: returns what is added to the residual stream."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype=dtype, device=device)
        self.gate_up: nn.Module = Linear(hidden, 2 * inner, dtype=dtype, device=device)
        self.down: nn.Module = Linear(inner, hidden, dtype=dtype, device=device)

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """[R, H] -> [R, H]."""
        gate, up = self.gate_up(self.norm(hidden_RH)).chunk(2, dim=-1)
        added: Tensor = self.down(functional.silu(gate) * up)
        return added


class DecoderLayer(nn.Module):
    """One layer: attention, then MLP, each added to the residual stream and shown to observers."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        rotary: Rotary,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.index = index
        self.attention: nn.Module = Attention(config, index, rotary, dtype=dtype, device=device)
        self.mlp: nn.Module = GatedMLP(config, dtype=dtype, device=device)

    def forward(self, hidden_RH: Tensor, context: StepContext) -> Tensor:
        """[R, H] -> [R, H]."""
        middle_RH: Tensor = hidden_RH + self.attention(hidden_RH, context)
        context.observe(self.index, Site.ATTENTION, middle_RH)
        output_RH: Tensor = middle_RH + self.mlp(middle_RH)
        context.observe(self.index, Site.MLP, output_RH)
        return output_RH


class Decoder(nn.Module):
    """Embedding, layers, final norm and head; a pipeline stage lacks some of them."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.vocab_start = 0
        """Global id of the head's first row: not zero on later tensor-parallel ranks."""
        vocab, hidden = config.vocab_size, config.hidden_size
        rotary = Rotary(config, max_model_len=max_model_len, dtype=dtype)
        self.embed: nn.Module | None = Embedding(vocab, hidden, dtype=dtype, device=device)
        self.layers = nn.ModuleDict(
            {
                str(index): DecoderLayer(config, index, rotary, dtype=dtype, device=device)
                for index in range(config.num_layers)
            }
        )
        self.norm: nn.Module | None = RMSNorm(
            hidden, config.rms_norm_eps, dtype=dtype, device=device
        )
        head = Linear(hidden, vocab, dtype=dtype, device=device)
        if config.tie_word_embeddings:
            head.weight = self.embed.weight
        self.head: nn.Module | None = head
        self.fused_layers: nn.Module | None = None
        """All layers in one kernel, where native kernels took their place."""
        self.fused_top: FusedTop | None = None
        """Norm, head and arg-max in one kernel, where native kernels took their place."""

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """Global indices of the layers held here, in order."""
        return tuple(int(name) for name in self.layers)

    def forward(self, tokens_or_hidden: Tensor, context: StepContext) -> Tensor:
        """[R] int64 ids on the first stage, [R, H] on others -> [R, H], not yet normalised."""
        hidden_RH = tokens_or_hidden if self.embed is None else self.embed(tokens_or_hidden)
        if self.fused_layers is not None:
            fused_RH: Tensor = self.fused_layers(hidden_RH, context)
            return fused_RH
        for layer in self.layers.values():
            hidden_RH = layer(hidden_RH, context)
        return hidden_RH

    def logits(self, hidden_LH: Tensor) -> Tensor:
        """[L, H] -> [L, V] in fp32 (fp64 for fp64); last stage only."""
        assert self.norm is not None
        assert self.head is not None
        logits_LV: Tensor = self.head(self.norm(hidden_LH))
        return logits_LV.to(wide_dtype(self.dtype))

    def top(self, hidden_LH: Tensor) -> TopTokens:
        """Arg-max over the local vocabulary, with global ids; ties go to the lowest id."""
        if self.fused_top is not None:
            top: TopTokens = self.fused_top(hidden_LH)
            return top
        return self._top_of(self.logits(hidden_LH))

    def top_and_logits(self, hidden_LH: Tensor, rows: Sequence[int]) -> tuple[TopTokens, Tensor]:
        """``top`` of all rows, and the local logits [len(rows), V] of some, from one pass."""
        if self.fused_top is not None:
            both: tuple[TopTokens, Tensor] = self.fused_top.top_and_logits(hidden_LH, rows)
            return both
        logits_LV = self.logits(hidden_LH)
        wanted_SV = logits_LV[list(rows)]
        return self._top_of(logits_LV), wanted_SV

    def _top_of(self, logits_LV: Tensor) -> TopTokens:
        """Overwrites the logits."""
        values_L, local_L = logits_LV.max(dim=-1)
        runner_up_L = logits_LV.scatter_(1, local_L.unsqueeze(1), -torch.inf).amax(dim=-1)
        return TopTokens(values_L, local_L + self.vocab_start, runner_up_L)

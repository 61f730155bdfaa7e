"""The EAGLE-3 head: one decoder layer that continues the verifier's features.

EAGLE-3 (Li et al. 2025, arXiv 2503.01840, section 3.1; SafeAILab/EAGLE eagle/model/cnets.py). The
feature of position t is joined with the embedding of token t + 1; the layer's output predicts token
t + 2, and in place of a verifier's feature it is the feature of position t + 1:

    x = [input_norm(e); hidden_norm(f)]        q, k, v from x, which is 2H wide
    a = f + attention(x)                       hidden_norm(f) + ... with ``norm_before_residual``
    h = a + mlp(norm(a))                       logits = lm_head(norm(h)); next feature h

Which keys a row sees is the caller's: drafting has a cache, training has diagonal keys.

Legend: R rows, A answered rows, H hidden, S keys, Q query heads, K kv heads, G query heads per kv
head, D head_dim, T taps, V draft vocabulary, N the verifier's hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from drafters.eagle3_config import Eagle3Config
from drafters.vocabulary import DraftVocabulary
from engine.features import FeatureProjection
from engine.models.decoder import GatedMLP
from engine.models.layers import Embedding, Linear, RMSNorm, Rotary, wide_dtype
from engine.models.packed import pack_linears

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(query [R, Q, D], key [R, K, D], value [R, K, D]) of the new rows to the output [A, Q, D] of the
rows that are answered. There is one layer, so nothing needs the outputs of pairs that are only
there to be attended to.
"""

Answered = slice | Tensor
"""Rows whose output is wanted: a slice, or indices."""

ALL_ROWS = slice(None)

_FIRST_POSITIONS = 2048
"""Positions that the rotary table holds before anything longer is reserved."""


class FeatureFusion(nn.Module):
    """``fc``: several verifier states to one feature."""

    def __init__(self, config: Eagle3Config, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        target, num_taps = config.target_hidden_size, len(config.taps)
        shape = (config.layer.hidden_size, num_taps * target)
        self.taps = config.taps
        self.weight = nn.Parameter(
            torch.empty(shape, dtype=dtype, device=device), requires_grad=False
        )
        eps = config.layer.rms_norm_eps
        norms = [RMSNorm(target, eps, dtype=dtype, device=device) for _ in range(num_taps)]
        self.norms = nn.ModuleList(norms if config.fc_norm else [])

    def forward(self, states_RTN: Tensor) -> Tensor:
        """[R, T, N], taps in the configuration's order -> [R, H]."""
        if self.norms:
            parts = zip(self.norms, states_RTN.unbind(1), strict=True)
            states_RTN = torch.stack([norm(state_RN) for norm, state_RN in parts], dim=1)
        return functional.linear(states_RTN.flatten(1), self.weight)

    def projection(self, dtype: torch.dtype) -> FeatureProjection:
        """The same map split by tap, for the verifier's pass; taps ascend."""
        weights = self.weight.detach().chunk(len(self.taps), dim=1)
        order = sorted(range(len(self.taps)), key=self.taps.__getitem__)
        norms: list[nn.Module] = [deepcopy(norm).to(dtype) for norm in self.norms]
        return FeatureProjection(
            taps=tuple(self.taps[index] for index in order),
            weights=tuple(weights[index].to(dtype).contiguous() for index in order),
            norms=tuple(_as_norm(norms[index]) for index in order) if norms else None,
        )


class Eagle3Layer(nn.Module):
    """The head's decoder layer (``midlayer``)."""

    def __init__(self, config: Eagle3Config, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        layer = config.layer
        hidden, eps = layer.hidden_size, layer.rms_norm_eps
        self.head_dim, self.num_heads, self.num_kv_heads = (
            layer.head_dim,
            layer.num_heads,
            layer.num_kv_heads,
        )
        self.norm_before_residual = config.norm_before_residual
        self.input_norm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        width = layer.query_size + 2 * layer.kv_size
        self.qkv: nn.Module = Linear(2 * hidden, width, dtype=dtype, device=device)
        self.o: nn.Module = Linear(layer.query_size, hidden, dtype=dtype, device=device)
        self.mlp: nn.Module = GatedMLP(layer, dtype=dtype, device=device)

    def forward(
        self,
        embedded_RH: Tensor,
        features_RH: Tensor,
        turn: Callable[[Tensor], Tensor],
        attend: Attend,
        answered: Answered,
    ) -> Tensor:
        """[R, H], [R, H] -> [A, H].

        ``turn`` applies the rotary embedding to [R, heads, D].
        """
        normed_RH = self.hidden_norm(features_RH)
        residual_RH = normed_RH if self.norm_before_residual else features_RH
        joined = torch.cat((self.input_norm(embedded_RH), normed_RH), dim=-1)
        qkv = self.qkv(joined).view(len(joined), -1, self.head_dim)
        query_key = turn(qkv.narrow(1, 0, self.num_heads + self.num_kv_heads))
        output_AQD = attend(
            query_key.narrow(1, 0, self.num_heads),
            query_key.narrow(1, self.num_heads, self.num_kv_heads),
            qkv.narrow(1, self.num_heads + self.num_kv_heads, self.num_kv_heads),
        )
        middle_AH: Tensor = residual_RH[answered] + self.o(output_AQD.flatten(1))
        output_AH: Tensor = middle_AH + self.mlp(middle_AH)
        return output_AH


class Eagle3Head(nn.Module):
    """Feature fusion, embedding, layer, norm and a head over the draft vocabulary.

    Parameters are frozen until ``unfreeze`` and uninitialised until loaded or ``initialise``.
    """

    def __init__(
        self,
        config: Eagle3Config,
        vocabulary: DraftVocabulary,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        assert vocabulary.size == config.draft_vocab_size
        layer = config.layer
        hidden, eps = layer.hidden_size, layer.rms_norm_eps
        self.config, self.vocabulary, self.dtype = config, vocabulary, dtype
        self.fc = FeatureFusion(config, dtype=dtype, device=device)
        self.embed = Embedding(layer.vocab_size, hidden, dtype=dtype, device=device)
        self.midlayer = Eagle3Layer(config, dtype=dtype, device=device)
        self.norm = RMSNorm(hidden, eps, dtype=dtype, device=device)
        self.lm_head: nn.Module = Linear(
            hidden, config.draft_vocab_size, dtype=dtype, device=device
        )
        self.rotary = Rotary(layer, max_model_len=_FIRST_POSITIONS, dtype=dtype)

    def forward(
        self,
        features_RH: Tensor,
        token_ids_R: Tensor,
        positions_R: Tensor,
        attend: Attend,
        answered: Answered = ALL_ROWS,
    ) -> Tensor:
        """[A, H]: the layer's output at the rows that ``attend`` answers for.

        Row r pairs the feature of position ``positions_R[r]`` with the *next* token.
        ``reserve_positions`` must cover every position.
        """

        def turn(heads: Tensor) -> Tensor:
            turned: Tensor = self.rotary(heads, positions_R)
            return turned

        output_AH: Tensor = self.midlayer(
            self.embed(token_ids_R), features_RH, turn, attend, answered
        )
        return output_AH

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """[R, H] -> [R, V] over the draft vocabulary, in fp32 (fp64 for fp64)."""
        if self.config.norm_before_logits:
            hidden_RH = self.norm(hidden_RH)
        logits_RV: Tensor = self.lm_head(hidden_RH)
        return logits_RV.to(wide_dtype(self.dtype))

    def next_features(self, hidden_RH: Tensor) -> Tensor:
        """[R, H]: what stands in for the verifier's feature of the next position."""
        normed_RH: Tensor = self.norm(hidden_RH) if self.config.norm_feedback else hidden_RH
        return normed_RH

    def reserve_positions(self, length: int) -> None:
        """Make positions up to ``length`` - 1 usable, beyond the trained length too."""
        held = len(self.rotary.cos_SD)
        if length > held:
            length = max(length, 2 * held)
            rotary = Rotary(self.config.layer, max_model_len=length, dtype=self.dtype)
            self.rotary = rotary.to(self.rotary.cos_SD.device)

    def initialise(self, generator: torch.Generator, *, std: float = 0.02) -> None:
        """Fresh weights for training: normal matrices, norms of one; not the embedding."""
        for name, parameter in self.named_parameters():
            if name.startswith("embed."):
                continue
            if parameter.ndim == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=std, generator=generator)

    @torch.no_grad()
    def adopt(self, other: Eagle3Head) -> None:
        """Take another head's weights; tokens that only this one drafts keep their rows."""
        theirs = dict(other.named_parameters())
        known_D = other.vocabulary.draft_ids[self.vocabulary.target_ids]
        for name, parameter in self.named_parameters():
            if name == "lm_head.weight":
                parameter[known_D >= 0] = theirs[name][known_D[known_D >= 0]]
            else:
                parameter.copy_(theirs[name])

    def unfreeze(self) -> None:
        """Let gradients reach everything but the embedding, which no project trains."""
        self.requires_grad_(requires_grad=True)
        self.embed.requires_grad_(requires_grad=False)

    def prepare_for_inference(self) -> None:
        """Freeze, and pack the linear layers; it cannot be saved afterwards."""
        self.requires_grad_(requires_grad=False)
        self.eval()
        pack_linears(self)

    def projection(self, dtype: torch.dtype) -> FeatureProjection:
        """What the verifier's pass computes for this head."""
        return self.fc.projection(dtype)


def grouped_attention(
    query_RQD: Tensor, key_KSD: Tensor, value_KSD: Tensor, bias_RS: Tensor | None = None
) -> Tensor:
    """[R, Q, D]: softmax attention; query head i reads kv head i // G. No key is repeated.

    ``bias_RS`` is added to the scores: 0 where a row sees a key, -inf where not.
    """
    rows, num_heads, dim = query_RQD.shape
    num_kv_heads, length, _ = key_KSD.shape
    grouped = query_RQD.reshape(rows, num_kv_heads, -1, dim).transpose(0, 1)
    scores = grouped.reshape(num_kv_heads, -1, dim) @ key_KSD.transpose(1, 2) * dim**-0.5
    scores_KRGS = scores.view(num_kv_heads, rows, -1, length)
    if bias_RS is not None:
        scores_KRGS = scores_KRGS + bias_RS.unsqueeze(1)
    weights = scores_KRGS.softmax(-1, dtype=wide_dtype(query_RQD.dtype)).to(query_RQD.dtype)
    output: Tensor = weights.view(num_kv_heads, -1, length) @ value_KSD
    return output.view(num_kv_heads, rows, -1, dim).transpose(0, 1).reshape(rows, num_heads, dim)


def _as_norm(module: nn.Module) -> RMSNorm:
    assert isinstance(module, RMSNorm)
    return module

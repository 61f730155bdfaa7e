"""The shape of a model: what the decoder needs to be built, whatever file format said it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "qwen3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length a model was pretrained on."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    """llama3 only: wavelengths longer than the original length over this are fully stretched."""
    high_freq_factor: float = 4.0
    """llama3 only: wavelengths shorter than the original length over this are kept."""
    original_max_position_embeddings: int = 8192
    """llama3 only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-like decoder; names follow Hugging Face's where they have one."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise ValueError(
                f"{self.num_heads} query heads do not divide over {self.num_kv_heads} kv heads: "
                "num_attention_heads must be a multiple of num_key_value_heads"
            )
        if self.head_dim % 2 != 0:
            raise ValueError(f"head_dim={self.head_dim} is odd: rotary embeddings need pairs")

    @property
    def has_qk_norm(self) -> bool:
        """Whether each query and key head is normalised before the rotary embedding."""
        return self.architecture == "qwen3"

    @property
    def query_size(self) -> int:
        """Features of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Features of all key heads; the value heads have as many."""
        return self.num_kv_heads * self.head_dim

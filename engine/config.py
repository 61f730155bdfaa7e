"""What an engine is built from: frozen configurations, checked where they are made.

Every wrong value raises ``ValueError`` with one sentence that names the field as the user writes it
and says what is allowed, so that a command can show the sentence as it is. Field texts become the
help of the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from engine.config_checks import check_choice, check_flag_integer
from engine.methods import Exactness, Kernels, Precision
from engine.speculation import SpeculationConfig

MAX_MODEL_LEN = 1 << 20
"""Largest accepted ``max_model_len``: beyond it a wrong digit is likelier than a wish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: the verifier, how it is spread over ranks, and how it speculates."""

    model: str
    """Verifier weights: a hub id, a directory, or package:NAME for weights inside a package."""
    dtype: Precision = "bfloat16"
    """Precision of weights and activations."""
    tensor_parallel_size: int = 1
    """Ranks that share every layer."""
    pipeline_parallel_size: int = 1
    """Stages that share the layers among them."""
    max_model_len: int = 4096
    """Longest sequence, prompt and answer together."""
    max_num_seqs: int = 4
    """Requests decoded together."""
    max_kv_tokens: int | None = None
    """Tokens of all running requests together; beyond it the newest are computed again later."""
    enable_prefix_caching: bool = True
    """Whether a prompt reuses what an earlier one with the same beginning left in the cache."""
    quantization: str | None = None
    """Weight quantisation; none is available yet."""
    exactness: Exactness = "strict"
    """strict: bit for bit plain decoding's tokens; fast: no row padding, near-ties are counted."""
    num_threads: int | None = None
    """Threads of one rank; by default the machine's cores divided among its ranks."""
    kernels: Kernels = "auto"
    """CPU kernels: our own compiled ones, pre-packed linear layers, or plain torch."""
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    """How draft tokens are found."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError(f"--model must name a hub id or a directory, not {self.model!r}.")
        check_choice("--dtype", self.dtype, get_args(Precision))
        check_flag_integer("--tensor-parallel-size", self.tensor_parallel_size, 1, 1024)
        check_flag_integer("--pipeline-parallel-size", self.pipeline_parallel_size, 1, 1024)
        check_flag_integer("--max-model-len", self.max_model_len, 2, MAX_MODEL_LEN)
        check_flag_integer("--max-num-seqs", self.max_num_seqs, 1, 1024)
        if self.max_kv_tokens is not None:
            check_flag_integer("--max-kv-tokens", self.max_kv_tokens, self.max_model_len, 2**40)
        if self.quantization is not None:
            raise ValueError(
                f"--quantization {self.quantization!r} is not available yet: leave the flag out."
            )
        check_choice("--exactness", self.exactness, get_args(Exactness))
        if self.num_threads is not None:
            check_flag_integer("--num-threads", self.num_threads, 1, 1024)
        check_choice("--kernels", self.kernels, get_args(Kernels))

    @property
    def num_ranks(self) -> int:
        """Verifier ranks: tensor-parallel times pipeline-parallel."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def threads_per_rank(self, num_cores: int) -> int:
        """Threads of each rank on a machine of ``num_cores`` that holds every rank."""
        if self.num_threads is not None:
            return self.num_threads
        return max(1, num_cores // self.num_ranks)

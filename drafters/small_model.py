"""Drafts with a small model of the verifier's family: a greedy chain or a dynamic tree.

Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023, arXiv 2211.17192,
algorithm 1), with a greedy drafter. The paper's M_q is the drafter, γ the length of the chain.
Spec-Bench calls the method SPS. Trees grow as EAGLE-2's do (``drafters.draft_tree``).

Legend: R rows, H hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from drafters.cached_model import CachedContext, CachedModel, limit_vocabulary
from drafters.draft_tree import ChainShape, Children, Level, TreeShape, grow_tree, top_children
from drafters.vocabulary_check import check_vocabulary
from engine.candidates import TokenTree
from engine.kernels import install_kernels
from engine.methods import Kernels
from engine.models.decoder import Decoder
from engine.models.layers import Linear
from engine.models.packed import PackedLinear, can_pack
from engine.records import Draft, SequenceView
from engine.weights import load_model, read_model_config, resolve_model
from parallel.mesh import Mesh

NextToken = Callable[[Decoder, Tensor], tuple[int, float]]
"""A state [1, H] to the token drafted behind it and the drafter's probability of it."""

Candidates = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """How a small model drafts and how much memory it may use."""

    shape: ChainShape | TreeShape = field(default_factory=ChainShape)
    """What a draft looks like."""
    num_slots: int = 4
    """Requests whose contexts are kept."""
    max_model_len: int = 4096
    """Longest context; a drafter that was made for less stops drafting at its own limit."""
    dtype: torch.dtype = torch.bfloat16
    """Precision of weights and activations."""
    kernels: Kernels = "auto"
    """CPU kernels, as for the verifier."""

    def __post_init__(self) -> None:
        for name in ("num_slots", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"drafter: {name} is {getattr(self, name)}; it must be 1 or more")

    @property
    def needs_logits(self) -> bool:
        """Whether the arg-max alone is not enough."""
        return isinstance(self.shape, TreeShape) or self.shape.min_probability > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """What a drafter must know of the model it drafts for."""

    directory: Path
    """With ``tokenizer.json``."""
    vocab_size: int
    """Rows of the verifier's head: no other id may be proposed."""


class SmallModelDrafter:
    """Implements ``engine.interfaces.NeuralDrafter`` with a decoder of its own."""

    def __init__(self, model: CachedModel, shape: ChainShape | TreeShape) -> None:
        """Raises ``ValueError`` for a tree that may need more rows than the model runs at once."""
        self._cached, self._shape = model, shape
        self._depth = shape.depth if isinstance(shape, TreeShape) else shape.num_tokens
        if isinstance(shape, TreeShape) and shape.depth * shape.top_k > model.max_rows:
            raise ValueError(
                f"draft tree: depth {shape.depth} times top_k {shape.top_k} is more than the "
                f"{model.max_rows} rows that the drafter runs at once"
            )

    def knows(self, request_id: str) -> bool:
        """Whether anything of the request was read and is kept."""
        return self._cached.knows(request_id)

    def draft(self, view: SequenceView) -> Draft:
        """Read what is new and continue it; empty where that is impossible.

        That is: no room for a draft token, or a token that the drafter has no embedding for.
        """
        depth = self._room(view)
        context = self._cached.context(view.request_id, view.token_ids)
        unread = view.token_ids[context.length :]
        if depth < 1 or not self._cached.can_read(unread):
            return Draft()
        hidden_1H = self._cached.read(context, unread)
        context.confirm()
        candidates = self._candidates(context, hidden_1H, depth)
        return Draft(source="neural", candidates=candidates) if candidates else Draft()

    def read(self, view: SequenceView, length: int) -> None:
        """Read the first ``length`` tokens, unless no draft could follow; drafts nothing."""
        context = self._cached.context(view.request_id, view.token_ids)
        unread = view.token_ids[context.length : length]
        if unread and self._room(view) > 0 and self._cached.can_read(unread):
            self._cached.read(context, unread)
            context.confirm()

    def forget(self, request_id: str) -> None:
        """Drop the request's context."""
        self._cached.forget(request_id)

    def _room(self, view: SequenceView) -> int:
        """Draft tokens wanted, wished for, and that still have positions.

        The last draft token is never read, so it needs no position.
        """
        positions = self._cached.max_length - len(view.token_ids) + 1
        return min(self._depth, view.max_draft_tokens, positions)

    def _candidates(self, context: CachedContext, hidden_1H: Tensor, depth: int) -> Candidates:
        if isinstance(self._shape, TreeShape):
            tree = _TreeRun(self._cached, context, replace(self._shape, depth=depth))
            return tree.candidates(hidden_1H)
        chain = self._chain(context, hidden_1H, replace(self._shape, num_tokens=depth))
        return (chain,) if chain else ()

    def _chain(
        self, context: CachedContext, hidden_1H: Tensor, shape: ChainShape
    ) -> tuple[int, ...]:
        next_token: NextToken = likeliest if shape.min_probability == 0 else sure_likeliest
        drafted: list[int] = []
        joint = 1.0
        while True:
            token, probability = next_token(self._cached.model, hidden_1H)
            joint *= probability
            if joint < shape.min_probability:
                return tuple(drafted)
            drafted.append(token)
            if len(drafted) == shape.num_tokens:
                return tuple(drafted)
            hidden_1H = self._cached.read(context, [token])


class _TreeRun:
    """One tree. A level is run together with the ancestors of its nodes; none of them is kept.

    Scratch rows live for one pass only, and the likeliest nodes of a level share most ancestors,
    so running these again costs a few rows and needs no cache of its own.
    """

    def __init__(self, model: CachedModel, context: CachedContext, shape: TreeShape) -> None:
        self._cached, self._context, self._shape = model, context, shape
        self._token_ids: list[int] = []
        self._paths: list[tuple[int, ...]] = []

    def candidates(self, root_1H: Tensor) -> Candidates:
        """Grow the tree below the pending token, whose state is given."""
        return grow_tree(self._shape, self._children(root_1H), self._expand)

    def _expand(self, level: Level) -> Children:
        self._token_ids += level.token_ids
        self._paths += level.paths
        hidden_RH = self._cached.look(self._context, self._subtree(level))
        return self._children(hidden_RH[-len(level.paths) :])

    def _subtree(self, level: Level) -> TokenTree:
        """The level's nodes, which come last, and all their ancestors."""
        nodes = sorted({node for path in level.paths for node in path})
        index = {node: row for row, node in enumerate(nodes)}
        paths = [self._paths[node] for node in nodes]
        return TokenTree(
            tuple(self._token_ids[node] for node in nodes),
            tuple(index[path[-2]] if len(path) > 1 else -1 for path in paths),
        )

    @torch.inference_mode()
    def _children(self, hidden_RH: Tensor) -> Children:
        logits_RV = self._cached.model.logits(hidden_RH)
        return top_children(logits_RV, self._shape.top_k, lambda columns: columns)


@torch.inference_mode()
def likeliest(model: Decoder, hidden_1H: Tensor) -> tuple[int, float]:
    """The arg-max; its probability is not computed and counts as 1."""
    return int(model.top(hidden_1H).ids), 1.0


@torch.inference_mode()
def sure_likeliest(model: Decoder, hidden_1H: Tensor) -> tuple[int, float]:
    """The arg-max with its probability at temperature 1."""
    probability, token = model.logits(hidden_1H)[0].softmax(-1).max(-1)
    return int(token), float(probability)


def load_small_model(
    source: str, settings: DraftSettings, *, verifier: Verifier
) -> SmallModelDrafter:
    """Load a drafter from anything ``resolve_model`` takes and compare its vocabulary.

    Raises:
        ValueError: one sentence about the source, its files, or a vocabulary that contradicts the
            verifier's.
    """
    model = load_draft_model(resolve_model(source), settings, verifier=verifier)
    install_draft_kernels(model, settings)
    return SmallModelDrafter(cached_model(model, settings), settings.shape)


def load_draft_model(directory: Path, settings: DraftSettings, *, verifier: Verifier) -> Decoder:
    """The decoder in a model directory, without faster kernels; its head knows verifier ids only.

    Raises:
        ValueError: as ``load_small_model``.
    """
    check_vocabulary(directory, verifier.directory)
    length = min(settings.max_model_len, read_model_config(directory).max_position_embeddings)
    model = load_model(
        str(directory), dtype=settings.dtype, mesh=Mesh.single(), max_model_len=length
    )
    limit_vocabulary(model, verifier.vocab_size)
    return model


def install_draft_kernels(model: Decoder, settings: DraftSettings) -> None:
    """The verifier's kernels; native ones get a head whose logits do not cost an unpacking."""
    head = model.head
    assert isinstance(head, Linear)
    native = install_kernels(model, settings.kernels)
    if native and settings.needs_logits:
        model.head = PackedLinear(head.weight) if can_pack(model.dtype) else head


def cached_model(model: Decoder, settings: DraftSettings) -> CachedModel:
    """A loaded decoder with its cache, as long as the settings and its own positions allow."""
    length = min(settings.max_model_len, model.config.max_position_embeddings)
    return CachedModel(model, num_slots=settings.num_slots, max_length=length)

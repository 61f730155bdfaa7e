"""Drafts with a small model of the verifier's family: a chain or a dynamic tree.

Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023, arXiv 2211.17192,
algorithm 1). The paper's M_q is the drafter, γ the length of the chain. Chains are greedy, or drawn
for a request that samples (``drafters.draft_sampling``); trees are of likeliest tokens.
Spec-Bench calls the method SPS. Trees grow as EAGLE-2's do (``drafters.draft_tree``).

Legend: R rows, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from drafters.cached_model import CachedContext, CachedModel, limit_vocabulary
from drafters.draft_sampling import DraftToken, next_token_of
from drafters.draft_tree import ChainShape, Children, Level, TreeShape, grow_tree, top_children
from drafters.vocabulary_check import check_vocabulary
from engine.candidates import TokenTree
from engine.kernels import install_kernels
from engine.methods import Kernels
from engine.models.decoder import Decoder
from engine.records import Draft, SequenceView
from engine.weights import load_model, read_model_config, resolve_model
from parallel.mesh import Mesh

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
        if isinstance(self._shape, TreeShape):
            tree = _TreeRun(self._cached, context, replace(self._shape, depth=depth))
            return Draft(source="neural", candidates=tree.candidates(hidden_1H))
        return self._chain(view, context, hidden_1H, replace(self._shape, num_tokens=depth))

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

    def _chain(
        self, view: SequenceView, context: CachedContext, hidden_1H: Tensor, shape: ChainShape
    ) -> Draft:
        """Token by token, until the chain is long enough or not likely enough."""
        next_token = next_token_of(view.sampling, min_probability=shape.min_probability)
        drafted: list[DraftToken] = []
        joint = 1.0
        while len(drafted) < shape.num_tokens:
            if drafted:
                hidden_1H = self._cached.read(context, [drafted[-1].token])
            found = next_token(self._cached.model, hidden_1H, len(view.token_ids) + len(drafted))
            joint *= found.probability
            if joint < shape.min_probability:
                break
            drafted.append(found)
        if not drafted:
            return Draft()
        return Draft(
            source="neural",
            candidates=(tuple(one.token for one in drafted),),
            proposals=tuple(one.proposal for one in drafted if one.proposal is not None),
        )


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
        _, logits_RV = self._cached.model.top_and_logits(hidden_RH, range(len(hidden_RH)))
        return top_children(logits_RV, self._shape.top_k, lambda columns: columns)


def load_small_model(
    source: str, settings: DraftSettings, *, verifier: Verifier
) -> SmallModelDrafter:
    """Load a drafter from anything ``resolve_model`` takes and compare its vocabulary.

    Raises:
        ValueError: one sentence about the source, its files, or a vocabulary that contradicts the
            verifier's.
    """
    model = load_draft_model(resolve_model(source), settings, verifier=verifier)
    install_kernels(model, settings.kernels)
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


def cached_model(model: Decoder, settings: DraftSettings) -> CachedModel:
    """A loaded decoder with its cache, as long as the settings and its own positions allow."""
    length = min(settings.max_model_len, model.config.max_position_embeddings)
    return CachedModel(model, num_slots=settings.num_slots, max_length=length)

"""The small-model drafter against the same model without a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from drafters.cached_model import CachedModel, limit_vocabulary
from drafters.draft_tree import ChainShape, TreeShape
from drafters.small_model import DraftSettings, SmallModelDrafter
from engine.models.decoder import Decoder
from engine.models.layers import Linear
from tests.support.causal import CausalContext
from tests.support.engines import random_decoder
from tests.support.reference import greedy_decode
from tests.support.steered import view
from tests.support.tiny import LLAMA2

CONFIG = replace(LLAMA2, vocab_size=61)
PROMPT = (5, 17, 3, 42, 5, 17, 9, 30, 2, 11)


def tiny_model(max_length: int = 128) -> Decoder:
    return random_decoder(CONFIG, seed=1, max_model_len=max_length, dtype=torch.float64)


def drafter_of(
    model: Decoder,
    shape: ChainShape | TreeShape | None = None,
    *,
    num_slots: int = 2,
    max_length: int = 128,
) -> SmallModelDrafter:
    cached = CachedModel(model, num_slots=num_slots, max_length=max_length)
    return SmallModelDrafter(cached, shape or ChainShape(num_tokens=6))


class CountingModel(CachedModel):
    """Counts the rows of every pass."""

    def __init__(self, model: Decoder, *, num_slots: int = 2) -> None:
        super().__init__(model, num_slots=num_slots, max_length=128)
        self.rows: list[int] = []
        model.register_forward_pre_hook(lambda _, inputs: self.rows.append(len(inputs[0])))


def next_log_probs(model: Decoder, token_ids: Sequence[int]) -> torch.Tensor:
    """[V]: recomputed from the first token on."""
    hidden = model(torch.tensor(list(token_ids)), CausalContext(len(token_ids)))
    return model.logits(hidden[-1:])[0].log_softmax(-1)


def test_a_draft_is_the_models_own_greedy_continuation() -> None:
    """Catches a wrong position, a lost row, and a draft that starts before the pending token."""
    model = tiny_model()
    (drafted,) = drafter_of(model).draft(view(PROMPT)).candidates
    assert drafted == greedy_decode(model, PROMPT, 6)
    assert len(set(drafted)) > 1, "a constant text would hide wrong positions"


@pytest.mark.parametrize("accepted", [0, 1, 3, 5, 6])
def test_a_later_draft_equals_a_fresh_one(accepted: int) -> None:
    """Catches rejected drafts that stay in the cache, at every place of the first rejection."""
    model = tiny_model()
    drafter = drafter_of(model)
    (drafted,) = drafter.draft(view(PROMPT)).candidates
    pending = (drafted[accepted % 6] + 1) % CONFIG.vocab_size
    context = (*PROMPT, *drafted[:accepted], pending)
    (again,) = drafter.draft(view(context)).candidates
    assert again == greedy_decode(model, context, 6)


def test_a_pending_token_that_was_drafted_is_read_again() -> None:
    """A verifier that looked at fewer rows may emit a drafted token: its logits are needed."""
    model = tiny_model()
    drafter = drafter_of(model)
    (drafted,) = drafter.draft(view(PROMPT)).candidates
    (again,) = drafter.draft(view((*PROMPT, *drafted[:2]))).candidates
    assert again == greedy_decode(model, (*PROMPT, *drafted[:2]), 6)


def test_only_unread_tokens_are_run() -> None:
    """Catches a drafter that is right because it reads everything again."""
    model = tiny_model()
    counting = CountingModel(model)
    drafter = SmallModelDrafter(counting, ChainShape(num_tokens=4))
    (drafted,) = drafter.draft(view(PROMPT)).candidates
    assert counting.rows == [10, 1, 1, 1]
    counting.rows.clear()
    drafter.draft(view((*PROMPT, *drafted, 7)))
    assert counting.rows == [2, 1, 1, 1], "three of four drafts were read while drafting"
    counting.rows.clear()
    copied = tuple(range(20))
    drafter.draft(view((*PROMPT, *drafted, 7, *copied)))
    assert counting.rows == [20, 1, 1, 1], "copied tokens are caught up in one pass"


def test_a_context_longer_than_a_pass_is_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a chunk that does not see the chunks before it."""
    monkeypatch.setattr("drafters.cached_model.MAX_CHUNK_ROWS", 4)
    model = tiny_model()
    counting = CountingModel(model)
    (drafted,) = (
        SmallModelDrafter(counting, ChainShape(num_tokens=2)).draft(view(PROMPT)).candidates
    )
    assert counting.rows == [4, 4, 2, 1]
    assert drafted == greedy_decode(model, PROMPT, 2)


def test_the_request_used_longest_ago_is_evicted_and_rebuilt() -> None:
    """Catches contexts that share a slot, and a context that is taken for read after eviction."""
    model = tiny_model()
    counting = CountingModel(model, num_slots=2)
    drafter = SmallModelDrafter(counting, ChainShape(num_tokens=2))
    prompts = {name: (*PROMPT, index) for index, name in enumerate("abc")}
    for name in "aba":
        drafter.draft(view(prompts[name], request=name))
    drafter.draft(view(prompts["c"], request="c"))
    assert drafter.knows("a")
    assert not drafter.knows("b")
    for name in "cba":
        (drafted,) = drafter.draft(view(prompts[name], request=name)).candidates
        assert drafted == greedy_decode(model, prompts[name], 2), name


def test_forgetting_frees_the_slot_and_an_unknown_id_is_ignored() -> None:
    """Catches a new request that starts with the tokens of the old one of the same name."""
    model = tiny_model()
    drafter = drafter_of(model, num_slots=1)
    drafter.draft(view(PROMPT))
    drafter.forget("a")
    drafter.forget("never seen")
    other = (*PROMPT[::-1], 4)
    (drafted,) = drafter.draft(view(other)).candidates
    assert drafted == greedy_decode(model, other, 6)


def test_a_request_that_became_shorter_is_read_anew() -> None:
    """A name used again without notice must not crash the drafter or keep old tokens."""
    model = tiny_model()
    drafter = drafter_of(model)
    drafter.draft(view(PROMPT))
    (drafted,) = drafter.draft(view((8, 9, 10))).candidates
    assert drafted == greedy_decode(model, (8, 9, 10), 6)


@pytest.mark.parametrize(("wished", "expected"), [(0, 0), (1, 1), (4, 4), (50, 6)])
def test_no_more_tokens_than_can_become_output(wished: int, expected: int) -> None:
    """Catches drafts behind the request's last token."""
    draft = drafter_of(tiny_model()).draft(view(PROMPT, max_draft_tokens=wished))
    assert sum(map(len, draft.candidates)) == expected
    assert (draft.source == "plain") == (expected == 0)


@pytest.mark.parametrize("shape", [ChainShape(num_tokens=6), TreeShape(depth=6, top_k=2)])
def test_drafting_ends_at_the_drafters_own_length(shape: ChainShape | TreeShape) -> None:
    """The last draft token needs no position; then come plain steps, not a crash."""
    model = tiny_model(max_length=14)
    drafter = drafter_of(model, shape, max_length=14)
    longest = []
    context = list(PROMPT)
    for _ in range(8):
        draft = drafter.draft(view(context))
        longest.append(max(map(len, draft.candidates), default=0))
        context.append(1)
    assert longest == [5, 4, 3, 2, 1, 0, 0, 0]


def test_a_token_without_embedding_ends_drafting() -> None:
    """A verifier with more ids than the drafter: an empty draft instead of a crash."""
    drafter = drafter_of(tiny_model())
    assert drafter.draft(view((*PROMPT, 61))).candidates == ()
    assert drafter.draft(view((*PROMPT, 61, 4))).candidates == ()
    assert len(drafter.draft(view(PROMPT, request="b")).candidates) == 1


def test_a_draft_ends_where_the_drafter_is_unsure() -> None:
    """The product of the probabilities decides, and the token that falls below it is left out."""
    model = tiny_model()
    greedy = greedy_decode(model, PROMPT, 6)
    joint = [
        sum(float(next_log_probs(model, (*PROMPT, *greedy[:i])).max()) for i in range(end))
        for end in range(1, 7)
    ]
    for kept in range(6):
        threshold = math.exp(joint[kept]) * 1.001
        shape = ChainShape(num_tokens=6, min_probability=threshold)
        draft = drafter_of(model, shape).draft(view(PROMPT))
        assert draft.candidates == ((greedy[:kept],) if kept else ())


def test_no_id_beyond_the_verifiers_is_drafted() -> None:
    """Padding rows of the head may have any weights: here they would always win."""
    model = tiny_model()
    assert isinstance(model.head, Linear)
    model.head.weight[40:] *= 100.0
    whole = drafter_of(model).draft(view(PROMPT)).candidates[0]
    limit_vocabulary(model, 40)
    for shape in (ChainShape(num_tokens=6), TreeShape(depth=3, top_k=4)):
        for candidate in drafter_of(model, shape).draft(view(PROMPT)).candidates:
            assert max(candidate) < 40
    assert max(whole) >= 40
    limit_vocabulary(model, 1000)
    assert model.head.out_features == 40


def brute_force_tree(model: Decoder, shape: TreeShape) -> set[tuple[int, ...]]:
    """EAGLE-2's tree with every path recomputed from the first token on."""
    scores: dict[tuple[int, ...], float] = {(): 0.0}
    beam: list[tuple[int, ...]] = [()]
    for _ in range(shape.depth):
        made = []
        for path in beam:
            top = next_log_probs(model, (*PROMPT, *path)).topk(shape.top_k)
            for value, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                made.append((*path, token))
                scores[made[-1]] = scores[path] + value
        beam = sorted(made, key=lambda path: -scores[path])[: shape.top_k]
    del scores[()]
    return set(sorted(scores, key=lambda path: -scores[path])[: shape.total_nodes - 1])


@pytest.mark.parametrize(
    "shape",
    [
        TreeShape(total_nodes=12, depth=4, top_k=3),
        TreeShape(total_nodes=60, depth=3, top_k=5),
        TreeShape(total_nodes=5, depth=1, top_k=2),
    ],
)
def test_a_tree_holds_the_likeliest_paths(shape: TreeShape) -> None:
    """Catches a node that attends to a sibling, sits at a wrong position or has a wrong parent."""
    model = tiny_model()
    candidates = drafter_of(model, shape).draft(view(PROMPT)).candidates
    nodes = {path[:end] for path in candidates for end in range(1, len(path) + 1)}
    assert nodes == brute_force_tree(model, shape)


def test_a_tree_leaves_nothing_in_the_cache() -> None:
    """Catches a later chain that attends to nodes of an earlier tree."""
    model = tiny_model()
    drafter = drafter_of(model, TreeShape(total_nodes=12, depth=4, top_k=3))
    drafter.draft(view(PROMPT))
    again = drafter.draft(view((*PROMPT, 7, 8))).candidates
    fresh = drafter_of(model, TreeShape(total_nodes=12, depth=4, top_k=3))
    assert again == fresh.draft(view((*PROMPT, 7, 8))).candidates


def test_a_tree_that_does_not_fit_into_a_pass_is_refused() -> None:
    """Catches a scratch that overflows in the middle of a request."""
    with pytest.raises(ValueError, match=r"depth 40 times top_k 10 is more than the 128 rows"):
        drafter_of(tiny_model(), TreeShape(depth=40, top_k=10))


@pytest.mark.parametrize(("name", "value"), [("num_slots", 0), ("max_model_len", -1)])
def test_impossible_settings_are_refused(name: str, value: int) -> None:
    """Catches a size that would fail later, inside a request."""
    with pytest.raises(ValueError, match=f"drafter: {name} is {value}; it must be 1 or more"):
        DraftSettings(**{name: value})  # type: ignore[arg-type]

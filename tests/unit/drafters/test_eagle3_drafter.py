"""The EAGLE-3 drafter's state: lazy consumption, limits, trees, requests side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafters import eagle3
from drafters.draft_tree import ChainShape, TreeShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_checkpoint import load_eagle3
from drafters.eagle3_head import Eagle3Head
from engine.copy_source import NO_COPIES
from engine.interfaces import NeuralDrafter
from engine.records import Draft, SequenceView
from tests.support.eagle3_reference import ReferenceHead, write_raw
from tests.support.tiny import LLAMA2, random_tensors, write_checkpoint

VERIFIER = replace(LLAMA2, num_layers=8)
REFERENCE = ReferenceHead(norm_feedback=False)
SHAPES = [ChainShape(num_tokens=6), TreeShape(total_nodes=14, depth=4, top_k=3)]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices: threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    verifier = write_checkpoint(tmp_path_factory.mktemp("verifier"), VERIFIER)
    directory = write_raw(tmp_path_factory.mktemp("head"), REFERENCE)
    return load_eagle3(directory, verifier, dtype=torch.float64)


def context(length: int, seed: int = 0) -> tuple[list[int], Tensor]:
    """Tokens, the last one pending, and features of all before it."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VERIFIER.vocab_size, (length,), generator=generator).tolist()
    return tokens, torch.randn(length - 1, 32, generator=generator, dtype=torch.float64)


def view(length: int, seed: int = 0, *, total: int = 40, limit: int = 9) -> SequenceView:
    """The first ``length`` tokens of a context of ``total``."""
    tokens, features = context(total, seed)
    return SequenceView(
        request_id=str(seed),
        token_ids=tokens[:length],
        copies=NO_COPIES,
        max_draft_tokens=limit,
        probe_score=None,
        features=features[: length - 1],
    )


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree"])
@pytest.mark.parametrize("chunk", [3, 512])
def test_state_that_grew_lazily_equals_state_from_scratch(
    head: Eagle3Head,
    shape: ChainShape | TreeShape,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches pairs lost or doubled when some steps were copied, and drafted keys that stay."""
    monkeypatch.setattr(eagle3, "MAX_CHUNK", chunk)
    drafter: NeuralDrafter = Eagle3Drafter(head, shape)
    drafts = {length: drafter.draft(view(length)) for length in (2, 3, 9, 10, 23, 40)}
    for length, draft in drafts.items():
        assert Eagle3Drafter(head, shape).draft(view(length)) == draft
        assert draft.source == "neural"
    assert len(set(drafts.values())) == len(drafts)


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree"])
def test_asking_twice_gives_the_same_draft(head: Eagle3Head, shape: ChainShape | TreeShape) -> None:
    """A question may be repeated without new tokens: there is no new pair to start from."""
    drafter = Eagle3Drafter(head, shape)
    assert drafter.draft(view(8)) == drafter.draft(view(8))


@pytest.mark.parametrize("shape", SHAPES, ids=["chain", "tree"])
def test_requests_side_by_side_do_not_touch_each_other(
    head: Eagle3Head, shape: ChainShape | TreeShape
) -> None:
    drafter = Eagle3Drafter(head, shape)
    together = [drafter.draft(view(length, seed)) for length in (5, 12) for seed in (1, 2)]
    alone = [
        Eagle3Drafter(head, shape).draft(view(length, seed))
        for length in (5, 12)
        for seed in (1, 2)
    ]
    assert together == alone


def test_a_forgotten_request_may_come_back_with_other_tokens(head: Eagle3Head) -> None:
    drafter = Eagle3Drafter(head, ChainShape())
    drafter.draft(replace(view(12, 1), request_id="a"))
    drafter.forget("a")
    drafter.forget("never seen")
    other = replace(view(7, 2), request_id="a")
    assert drafter.draft(other) == Eagle3Drafter(head, ChainShape()).draft(other)


def test_tokens_that_changed_are_an_error(head: Eagle3Head) -> None:
    drafter = Eagle3Drafter(head, ChainShape())
    drafter.draft(replace(view(12, 1), request_id="a"))
    with pytest.raises(AssertionError, match="only grow"):
        drafter.draft(replace(view(13, 2), request_id="a"))
    with pytest.raises(AssertionError, match="only grow"):
        drafter.draft(replace(view(9, 1), request_id="a"))


@pytest.mark.parametrize(("limit", "length"), [(0, 0), (1, 1), (4, 4), (6, 6), (50, 6)])
def test_a_chain_is_never_longer_than_what_can_become_output(
    head: Eagle3Head, limit: int, length: int
) -> None:
    draft = Eagle3Drafter(head, ChainShape(num_tokens=6)).draft(view(8, limit=limit))
    assert [len(candidate) for candidate in draft.candidates] == ([length] if length else [])
    if length == 0:
        assert draft == Draft()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_tree_is_never_deeper_than_what_can_become_output(head: Eagle3Head, limit: int) -> None:
    shape = TreeShape(total_nodes=30, depth=5, top_k=3)
    draft = Eagle3Drafter(head, shape).draft(view(8, limit=limit))
    assert max(len(candidate) for candidate in draft.candidates) == limit


def reference_log_probs(path: tuple[int, ...], length: int) -> Tensor:
    """[draft vocabulary] after a path behind the pending token, from scratch."""
    seen = view(length)
    assert seen.features is not None
    table = random_tensors(VERIFIER)["model.embed_tokens.weight"].double()
    features, tokens = list(seen.features), list(seen.token_ids)
    return REFERENCE.continue_path(features, tokens, list(path), table)[-1].log_softmax(-1)


def test_the_tree_is_the_one_that_recomputing_every_path_gives(head: Eagle3Head) -> None:
    """Catches a node that sees its siblings' keys, a wrong position or a wrong parent's state."""
    shape = TreeShape(total_nodes=12, depth=3, top_k=3)
    scores: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for _ in range(shape.depth):
        children = {}
        for path in level:
            top = reference_log_probs(path, 7).topk(shape.top_k)
            for value, draft_id in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                children[(*path, REFERENCE.token(draft_id))] = scores.get(path, 0.0) + value
        scores |= children
        level = sorted(children, key=lambda path: -children[path])[: shape.top_k]
    expected = set(sorted(scores, key=lambda path: -scores[path])[: shape.total_nodes - 1])
    candidates = Eagle3Drafter(head, shape).draft(view(7)).candidates
    assert {path[:end] for path in candidates for end in range(1, len(path) + 1)} == expected


@pytest.mark.parametrize("share", [0.999, 1.001])
def test_a_chain_ends_before_its_probability_falls_below_the_least(
    head: Eagle3Head, share: float
) -> None:
    """The threshold is on the product: just under the third token's product three are kept."""
    tokens = Eagle3Drafter(head, ChainShape(num_tokens=6)).draft(view(7)).candidates[0]
    product = 1.0
    for end in range(3):
        product *= float(reference_log_probs(tokens[:end], 7).max().exp())
    shape = ChainShape(num_tokens=6, min_probability=product * share)
    draft = Eagle3Drafter(head, shape).draft(view(7))
    assert draft.candidates == (tokens[: 3 if share < 1 else 2],)


def test_no_token_that_is_sure_enough_is_a_plain_step(head: Eagle3Head) -> None:
    assert Eagle3Drafter(head, ChainShape(min_probability=1.0)).draft(view(7)) == Draft()


def test_a_context_longer_than_the_trained_length_goes_on(head: Eagle3Head) -> None:
    """The head was trained for 64 positions and its table starts with 2048."""
    long = view(2100, total=2100)
    draft = Eagle3Drafter(head, ChainShape(num_tokens=3)).draft(long)
    assert len(draft.candidates[0]) == 3
    assert len(head.rotary.cos_SD) > 2100


def test_drafting_leaves_a_head_trainable(tmp_path: Path) -> None:
    """After an evaluation every parameter but the embedding still gets a gradient."""
    verifier = write_checkpoint(tmp_path / "verifier", VERIFIER)
    directory = write_raw(tmp_path / "head", REFERENCE)
    head = load_eagle3(directory, verifier, dtype=torch.float64)
    Eagle3Drafter(head, ChainShape()).draft(view(2100, total=2100))
    head.unfreeze()
    seen = view(5)
    assert seen.features is not None
    states = torch.randn(4, 3, 32, dtype=torch.float64)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return query + (key + value).repeat_interleave(2, dim=1)

    hidden = head(head.fc(states), torch.arange(4), torch.arange(4), attend)
    loss = head.logits(head.next_features(hidden)).square().sum()
    torch.autograd.backward(loss)
    for name, parameter in head.named_parameters():
        if name.startswith("embed."):
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_a_fresh_head_has_finite_weights_and_the_given_embedding(head: Eagle3Head) -> None:
    fresh = Eagle3Head(
        head.config, head.vocabulary, dtype=torch.float32, device=torch.device("cpu")
    )
    fresh.embed.weight.data.fill_(7.0)
    fresh.initialise(torch.Generator().manual_seed(0))
    assert torch.equal(fresh.embed.weight, torch.full_like(fresh.embed.weight, 7.0))
    assert torch.equal(fresh.norm.weight, torch.ones(32))
    assert 0.015 < float(fresh.fc.weight.std()) < 0.025


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"num_tokens": 0}, "num_tokens is 0"), ({"min_probability": 1.5}, "min_probability is 1.5")],
)
def test_an_impossible_chain_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainShape(**wrong)  # type: ignore[arg-type]

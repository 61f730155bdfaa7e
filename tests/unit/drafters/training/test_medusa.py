"""Training of Medusa heads: the right token at the right row, and what they are measured by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.static_tree import StaticTree
from drafters.training.batches import collate
from drafters.training.capture import Transcript
from drafters.training.frozen_verifier import FrozenVerifier
from drafters.training.medusa import MedusaTask, MedusaTraining, measure_heads, targets
from drafters.vocabulary import DraftVocabulary
from engine.models.decoder import Decoder
from parallel.mesh import Mesh
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.tiny import SMOLLM

CONFIG = replace(SMOLLM, num_layers=2, tie_word_embeddings=False)
HEADS = 2


def verifier_model() -> Decoder:
    return random_decoder(CONFIG, dtype=torch.float32)


def task() -> MedusaTask:
    """Untrained heads over the tiny verifier's whole vocabulary."""
    config = MedusaConfig(
        num_heads=HEADS,
        hidden_size=CONFIG.hidden_size,
        vocab_size=CONFIG.vocab_size,
        draft_vocab_size=CONFIG.vocab_size,
    )
    heads = MedusaHeads(
        config,
        DraftVocabulary.whole(CONFIG.vocab_size),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    verifier = FrozenVerifier(verifier_model())
    heads.set_projection(0, verifier.head_weight)
    return MedusaTask(heads, verifier, MedusaTraining(num_heads=HEADS))


def transcripts(count: int, length: int = 14) -> list[Transcript]:
    """Greedy answers of the tiny verifier."""
    prompts = [(3 + index, 7, 11 * index % 40) for index in range(count)]
    engine = build_engine(TinyEngine(config=CONFIG, dtype=torch.float32), Mesh.single())
    found = answers(engine, prompts, max_tokens=length)
    return [
        Transcript(prompt_ids=prompt, output_ids=output)
        for prompt, output in zip(prompts, found, strict=True)
    ]


def test_head_k_learns_the_kth_token_behind_the_pending_one() -> None:
    """Catches an offset of one: the row that emits 4 (the pending token) teaches 5 and 6."""
    entry = Transcript(prompt_ids=(1, 2, 3), output_ids=(4, 5, 6, 7))
    tokens_KL, counts_KL = targets(collate([entry], (0,)), 2)
    # Rows 2 to 5 emit 4, 5, 6 and 7.
    assert tokens_KL[0][counts_KL[0]].tolist() == [5, 6, 7]
    assert tokens_KL[1][counts_KL[1]].tolist() == [6, 7]
    assert counts_KL.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_the_loss_is_the_weighted_cross_entropy_of_the_heads() -> None:
    one, batch = task(), collate(transcripts(2), (0, 1))
    loss, _ = one.loss(batch, torch.Generator())
    tokens_KL, counts_KL = targets(batch, HEADS)
    starts_BT = torch.nn.functional.pad(batch.generated[:, 1:], (0, 1))
    final = FrozenVerifier(verifier_model()).states(batch.token_ids, ()).final[starts_BT]
    norm = verifier_model().norm
    assert norm is not None
    log_probs_KLV = one.heads.logits(norm(final)).log_softmax(-1)
    expected = torch.zeros(())
    for head in range(HEADS):
        chosen = log_probs_KLV[head].gather(1, tokens_KL[head][:, None])[:, 0]
        expected -= 0.8 ** (head + 1) * chosen[counts_KL[head]].mean()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


def test_training_steps_raise_the_accepted_length_and_leave_the_projection_alone() -> None:
    one = task()
    batch = collate(transcripts(5), range(5))
    before = one.heads.projection(0).clone()
    optimizer = torch.optim.AdamW([p for p in one.module.parameters() if p.requires_grad], lr=1e-2)
    first_loss, first = one.loss(batch, torch.Generator())
    for _ in range(40):
        optimizer.zero_grad()
        loss, metrics = one.loss(batch, torch.Generator())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.3 * first_loss.item()
    assert metrics["acceptance"] > first["acceptance"] + 0.5
    assert torch.equal(one.heads.projection(0), before)
    assert set(metrics) == {"acceptance", "head_1_right", "head_2_right"}


def test_measured_shares_and_tree_lengths_are_those_of_single_rows() -> None:
    """Two batches of unequal length, against a loop over rows."""
    one, entries, num_ranks = task(), transcripts(3), 4
    batches = [collate(entries, (0, 1)), collate([replace_answer(entries[2], 6)], (0,))]
    measured = measure_heads(one, batches, num_ranks)
    tree = StaticTree(nodes=((0,), (1,), (0, 0), (2,), (0, 3), (1, 1)))
    right, seen, steps, accepted = [[0] * num_ranks for _ in range(HEADS)], [0] * HEADS, 0, 0
    model, verifier = verifier_model(), FrozenVerifier(verifier_model())
    assert model.norm is not None
    for batch in batches:
        final_BTH = verifier.states(batch.token_ids, ()).final
        for row, tokens in enumerate(batch.token_ids.tolist()):
            length = int(batch.lengths[row])
            generated = [place for place in range(length) if batch.generated[row, place]]
            column = free = generated[0] - 1
            while column < length - 1:
                logits_KV = one.heads.logits(model.norm(final_BTH[row, column : column + 1]))[:, 0]
                path: list[int] = []
                for head, top in enumerate(logits_KV.topk(num_ranks).indices.tolist()):
                    if column + 2 + head < length:
                        seen[head] += 1
                        wanted = tokens[column + 2 + head]
                        path.append(top.index(wanted) if wanted in top else num_ranks)
                        if wanted in top:
                            right[head][path[-1]] += 1
                if column == free:
                    depth = max(d for d in range(len(path) + 1) if not d or known(tree, path[:d]))
                    steps, accepted, free = steps + 1, accepted + depth, column + depth + 1
                column += 1
    for head in range(HEADS):
        expected = [count / seen[head] for count in right[head]]
        assert measured.shares[head] == pytest.approx(expected)
    assert measured.accepted_length(tree) == pytest.approx(accepted / steps)


def known(tree: StaticTree, path: list[int]) -> bool:
    """Whether a path and all that lead to it are nodes."""
    return all(tuple(path[: end + 1]) in tree.nodes for end in range(len(path)))


def replace_answer(entry: Transcript, length: int) -> Transcript:
    return Transcript(prompt_ids=entry.prompt_ids, output_ids=entry.output_ids[:length])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_heads": 0}, "num_heads must be at least 1, not 0"),
        ({"tree_nodes": 0}, "tree_nodes must be at least 1, not 0"),
        ({"decay": 1.5}, "decay must be above 0 and at most 1, not 1.5"),
    ],
)
def test_wrong_settings_are_one_sentence(settings: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MedusaTraining(**settings)  # type: ignore[arg-type]

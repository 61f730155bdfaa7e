"""Training-time test sees exactly what drafting will see, and teaches a head to draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from drafters.eagle3_config import Eagle3Config
from drafters.eagle3_head import Eagle3Head, grouped_attention
from drafters.training.batches import Batch, collate
from drafters.training.capture import Transcript
from drafters.training.eagle3 import Eagle3Task, Eagle3Training, initialise_from_verifier
from drafters.training.eagle3_chains import DraftChains
from drafters.training.frozen_verifier import FrozenVerifier, RememberingVerifier
from drafters.vocabulary import DraftVocabulary
from engine.models.decoder import Decoder
from parallel.mesh import Mesh
from tests.support.causal import CausalContext
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.tiny import SMOLLM

CONFIG = replace(SMOLLM, num_layers=3)
TAPS = (1, 2, 3)
DRAFT_VOCAB = CONFIG.vocab_size - 10


def new_head(dtype: torch.dtype = torch.float64) -> Eagle3Head:
    """A head for the tiny verifier, initialised from its last layer."""
    generator = torch.Generator().manual_seed(1)
    layer = replace(CONFIG, num_layers=1, tie_word_embeddings=False)
    config = Eagle3Config(
        layer=layer,
        draft_vocab_size=DRAFT_VOCAB,
        target_hidden_size=CONFIG.hidden_size,
        taps=TAPS,
    )
    counts = torch.rand(CONFIG.vocab_size, generator=generator)
    vocabulary = DraftVocabulary.most_frequent(counts, DRAFT_VOCAB)
    head = Eagle3Head(config, vocabulary, dtype=dtype, device=torch.device("cpu"))
    initialise_from_verifier(head, verifier_model(dtype), CONFIG.num_layers - 1, generator)
    return head


def verifier_model(dtype: torch.dtype = torch.float64) -> Decoder:
    return random_decoder(CONFIG, dtype=dtype)


def transcripts(count: int, length: int = 14) -> list[Transcript]:
    """Real greedy answers of the tiny verifier."""
    generator = torch.Generator().manual_seed(5)
    prompts = [
        tuple(torch.randint(CONFIG.vocab_size, (3 + index % 4,), generator=generator).tolist())
        for index in range(count)
    ]
    found = answers(
        build_engine(TinyEngine(config=CONFIG), Mesh.single()), prompts, max_tokens=length
    )
    return [
        Transcript(prompt_ids=prompt, output_ids=output)
        for prompt, output in zip(prompts, found, strict=True)
    ]


def chain_by_hand(
    head: Eagle3Head, features_TH: Tensor, token_ids: list[int], column: int, num_steps: int
) -> list[Tensor]:
    """One chain as the drafter runs it: true pairs up to the column, then its own features."""
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key)
        values.append(value)
        seen = [torch.cat(rows).transpose(0, 1) for rows in (keys, values)]
        return grouped_attention(query, *seen)

    outputs = []
    for place in range(column + 1):
        hidden = head(
            features_TH[place : place + 1],
            torch.tensor(token_ids[place + 1 : place + 2]),
            torch.tensor([place]),
            attend,
        )
    outputs.append(hidden)
    for step in range(1, num_steps):
        hidden = head(
            head.next_features(hidden),
            torch.tensor(token_ids[column + 1 + step : column + 2 + step]),
            torch.tensor([column + step]),
            attend,
        )
        outputs.append(hidden)
    return outputs


def test_every_live_chain_equals_the_chain_that_drafting_runs() -> None:
    """Two thirds of the chains are given up at each step, in unequal numbers per sequence."""
    head = new_head()
    batch = collate(transcripts(3), (0, 1, 2))
    length = batch.token_ids.shape[1]
    states = FrozenVerifier(verifier_model()).states(batch.token_ids, TAPS)
    features = head.fc(states.taps.flatten(0, 1))
    starts = torch.tensor([0, 1, 4, 5, length + 3, length + 4, 2 * length + 2, 2 * length + 6])
    chains = DraftChains(head, batch, starts)
    compared = 0
    with torch.no_grad():
        hidden_LH = chains.first(features)
        for step in range(3):
            for place, hidden in zip(chains.rows_L.tolist(), hidden_LH, strict=True):
                row, column = divmod(place, length)
                own = features[row * length : (row + 1) * length]
                tokens = batch.token_ids[row].tolist()
                expected = chain_by_hand(head, own, tokens, column, step + 1)[step][0]
                torch.testing.assert_close(hidden, expected, rtol=1e-9, atol=1e-9)
                compared += 1
            live_L = torch.arange(len(chains.rows_L)) % 3 != step % 3
            chains.keep(live_L)
            hidden_LH = chains.next(head.next_features(hidden_LH[live_L]))
    assert compared == 8 + 5 + 3


def test_frozen_verifier_shows_the_states_of_a_plain_pass_despite_padding() -> None:
    entries = transcripts(3)
    batch = collate(entries, range(3))
    states = FrozenVerifier(verifier_model()).states(batch.token_ids, TAPS)
    model = verifier_model()
    for row, entry in enumerate(entries):
        length = len(entry.token_ids)
        final = model(torch.tensor(entry.token_ids), CausalContext(length))
        torch.testing.assert_close(states.final[row, :length], final, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(states.taps[row, :length, 2], final, rtol=1e-9, atol=1e-9)


def test_verifier_logits_predict_the_answers_own_tokens() -> None:
    """Transcripts are greedy text: what the loss takes for granted."""
    batch = collate(transcripts(2), (0, 1))
    verifier = FrozenVerifier(verifier_model())
    states = verifier.states(batch.token_ids, TAPS)
    predicted = verifier.logits(states.final.flatten(0, 1)).argmax(-1).view_as(batch.token_ids)
    rows = batch.generated[:, 1:]
    assert torch.equal(predicted[:, :-1][rows], batch.token_ids[:, 1:][rows])


def test_training_steps_raise_the_accepted_length() -> None:
    head = new_head(torch.float32)
    task = Eagle3Task(
        head, FrozenVerifier(verifier_model(torch.float32)), Eagle3Training(num_steps=3)
    )
    batch: Batch = collate(transcripts(6), range(6))
    optimizer = torch.optim.AdamW([p for p in task.module.parameters() if p.requires_grad], lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    before_embedding = head.embed.weight.clone()
    loss, first = task.loss(batch, generator)
    start = loss.item()
    for _ in range(60):
        optimizer.zero_grad()
        loss, metrics = task.loss(batch, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss.item() < 0.7 * start
    assert metrics["acceptance"] > first["acceptance"] + 0.3
    assert torch.equal(head.embed.weight, before_embedding)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_loss_counts_where_pending_and_predicted_tokens_were_generated(step: int) -> None:
    entry = Transcript(prompt_ids=(1, 2, 3), output_ids=(4, 5, 6, 7))
    batch = collate([entry], (0,))
    task = Eagle3Task(new_head(), FrozenVerifier(verifier_model()), Eagle3Training())
    mask = task._mask(batch, step)[0]
    # The first pending token stands at 3, so the first column is 2; the last predicted one is 6.
    assert mask.nonzero()[:, 0].tolist() == list(range(2, 6 - 1 - step))


def test_remembered_states_equal_fresh_ones_in_other_batches() -> None:
    entries = transcripts(4)
    remembering, fresh = RememberingVerifier(verifier_model()), FrozenVerifier(verifier_model())
    remembering.states(collate(entries, (0, 1)).token_ids, TAPS)
    remembering.states(collate(entries, (2, 3)).token_ids, TAPS)
    for indices in ((0, 3), (2,), (1, 2, 0)):
        batch = collate(entries, indices)
        found = remembering.states(batch.token_ids, TAPS)
        expected = fresh.states(batch.token_ids, TAPS)
        for row, length in enumerate(batch.lengths.tolist()):
            for name in ("taps", "final"):
                torch.testing.assert_close(
                    getattr(found, name)[row, :length], getattr(expected, name)[row, :length]
                )


def test_a_head_adopts_another_one_token_by_token() -> None:
    """A larger draft vocabulary: shared tokens keep what was learned, new ones start afresh."""
    start, head = new_head(), new_head()
    start.initialise(torch.Generator().manual_seed(9))
    small = DraftVocabulary(target_ids=torch.tensor([3, 5, 8]), vocab_size=CONFIG.vocab_size)
    rows = torch.randn(3, CONFIG.hidden_size, dtype=torch.float64)
    start.vocabulary, start.lm_head.weight = small, torch.nn.Parameter(rows)
    before = head.get_parameter("lm_head.weight").clone()
    head.adopt(start)
    ours, theirs = (dict(one.named_parameters()) for one in (head, start))
    assert torch.equal(ours["midlayer.qkv.weight"], theirs["midlayer.qkv.weight"])
    for draft, token in enumerate(head.vocabulary.target_ids.tolist()):
        known = small.draft_ids[token]
        expected = rows[known] if known >= 0 else before[draft]
        assert torch.equal(ours["lm_head.weight"][draft], expected)

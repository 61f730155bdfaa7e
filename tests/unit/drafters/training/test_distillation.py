"""Distilling and steering: they learn, zero steering is no steering, frozen means frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from drafters.steered import Steering, install_steering
from drafters.steering import HEADS, SteeringHead, SteeringShape
from drafters.training.batches import Batch, collate
from drafters.training.capture import Transcript
from drafters.training.frozen_verifier import FrozenVerifier
from drafters.training.small import SmallTask
from drafters.training.steered import (
    OFFSETS,
    SteeredTask,
    block_offsets,
    one_offset,
    random_offsets,
    shifted_back,
)
from drafters.training.task import TrainingTask
from engine.models.decoder import Decoder
from parallel.mesh import Mesh
from tests.support.engines import TinyEngine, answers, build_engine, random_decoder
from tests.support.tiny import SMOLLM

VERIFIER = replace(SMOLLM, num_layers=4)
DRAFTER = replace(SMOLLM, num_layers=1)
TAPS = (1, 2, 3)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Greedy answers of the tiny verifier to six prompts."""
    prompts = [(3 + index, 5, 9 + index) for index in range(6)]
    engine = build_engine(TinyEngine(config=VERIFIER), Mesh.single())
    found = answers(engine, prompts, max_tokens=12)
    pairs = zip(prompts, found, strict=True)
    entries = [Transcript(prompt_ids=prompt, output_ids=output) for prompt, output in pairs]
    return collate(entries, range(6))


def verifier() -> FrozenVerifier:
    return FrozenVerifier(random_decoder(VERIFIER, dtype=torch.float32))


def small() -> Decoder:
    """A drafter with the verifier's embedding and head."""
    model = random_decoder(DRAFTER, seed=3, dtype=torch.float32)
    teacher = random_decoder(VERIFIER, dtype=torch.float32)
    model.load_state_dict(teacher.state_dict(), strict=False)
    return model


def steered(head: type[SteeringHead] = SteeringHead) -> tuple[Decoder, Steering]:
    shape = SteeringShape(
        taps=TAPS,
        verifier_hidden_size=VERIFIER.hidden_size,
        drafter_hidden_size=DRAFTER.hidden_size,
        drafter_intermediate_size=DRAFTER.intermediate_size,
        layers=(0,),
    )
    model = small()
    return model, install_steering(model, head(shape))


def fit(task: TrainingTask, batch: Batch, steps: int = 80) -> tuple[float, float]:
    """First and last loss of a few steps of AdamW, always with the same draws."""
    parameters = [p for p in task.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=5e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, metrics = task.loss(batch, torch.Generator().manual_seed(1))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert metrics["acceptance"] >= 0.0
    return losses[0], losses[-1]


def test_distillation_learns_and_leaves_embedding_and_head_alone(batch: Batch) -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, last = fit(SmallTask(model, verifier()), batch)
    assert last < 0.7 * first
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    assert changed
    assert not any(name.startswith(("embed", "head")) for name in changed)


def test_an_untrained_head_gives_the_loss_of_the_unsteered_drafter(batch: Batch) -> None:
    plain, _ = SmallTask(small(), verifier()).loss(batch, torch.Generator())
    model, steering = steered()
    task = SteeredTask(model, steering, verifier(), lookahead=3)
    found, _ = task.loss(batch, torch.Generator().manual_seed(0))
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("variant", sorted(HEADS))
def test_steering_trains_in_bfloat16_too(batch: Batch, variant: str) -> None:
    """Parameters of the precision that the backend casts them to; states are cast to them."""
    whole_model, whole = steered(HEADS[variant])
    expected, _ = SteeredTask(whole_model, whole, verifier(), lookahead=3).loss(
        batch, torch.Generator().manual_seed(0)
    )
    model, steering = steered(HEADS[variant])
    model.bfloat16().dtype = torch.bfloat16
    steering.head.bfloat16()
    task = SteeredTask(model, steering, verifier(), lookahead=3)
    found, _ = task.loss(batch, torch.Generator().manual_seed(0))
    found.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02, check_dtype=False)
    gradients = [p.grad for p in steering.head.parameters() if p.grad is not None]
    assert any(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("name", sorted(OFFSETS))
def test_steering_alone_lowers_the_loss_of_a_frozen_drafter(batch: Batch, name: str) -> None:
    model, steering = steered()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    task = SteeredTask(model, steering, verifier(), lookahead=3, offsets=OFFSETS[name])
    task.freeze_drafter()
    first, last = fit(task, batch)
    assert last < 0.9 * first
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_steering_and_drafter_together_beat_distillation(batch: Batch) -> None:
    _, distilled = fit(SmallTask(small(), verifier()), batch)
    model, steering = steered()
    _, together = fit(SteeredTask(model, steering, verifier(), lookahead=3), batch)
    assert together < distilled


def test_prompt_rows_but_the_last_are_not_steered(batch: Batch) -> None:
    """A signal on a prompt row would change what later rows see of it."""
    model, steering = steered()
    torch.nn.init.normal_(steering.head.scale.weight)  # type: ignore[arg-type]
    seen: list[Tensor] = []
    original: Callable[[Tensor], None] = steering.set_signals
    steering.set_signals = lambda signals: (seen.append(signals), original(signals))[1]  # type: ignore[func-returns-value, method-assign]
    SteeredTask(model, steering, verifier(), lookahead=3).loss(
        batch, torch.Generator().manual_seed(0)
    )
    rows = seen[0][0].view(*batch.token_ids.shape, -1).abs().sum(-1) > 0
    expected = torch.zeros_like(batch.generated)
    expected[:, :-1] = batch.generated[:, 1:]
    assert torch.equal(rows, expected)


def test_offsets_are_what_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    assert len(set(one_offset((2, 5), 4, generator).flatten().tolist())) == 1
    drawn = random_offsets((50, 50), 4, generator)
    assert set(drawn.flatten().tolist()) == {1, 2, 3, 4}
    row = block_offsets((1, 12), 4, generator)[0].tolist()
    start = row.index(1)
    assert row[start : start + 8] == [1, 2, 3, 4, 1, 2, 3, 4]


def test_shifting_back_stops_at_the_first_row() -> None:
    vectors = torch.arange(5.0).view(1, 5, 1)
    found = shifted_back(vectors, torch.tensor([[1, 1, 2, 3, 1]]))
    assert found.flatten().tolist() == [0.0, 0.0, 0.0, 0.0, 3.0]

"""Loss and gradient equal those of the written-out divergence, whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from drafters.training import fused_losses as module
from drafters.training.fused_losses import fused_cross_entropy, fused_kl


def written_out(verifier_LV: Tensor, drafter_LV: Tensor) -> Tensor:
    """KL(verifier || drafter), the mean over the rows."""
    p_LV, q_LV = verifier_LV.softmax(-1), drafter_LV.softmax(-1)
    return (p_LV * (p_LV / q_LV).log()).sum(-1).mean()


@pytest.mark.parametrize("chunk_rows", [1, 3, 128])
def test_loss_gradient_and_agreement_are_those_of_whole_logits(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk_rows)
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    wanted = torch.randn(7, 50, generator=generator, dtype=torch.float64) * 3
    states = torch.randn(7, 8, generator=generator, dtype=torch.float64)
    ours, plain = (states.clone().requires_grad_() for _ in range(2))
    found = fused_kl(ours, head, lambda rows: wanted[rows])
    logits = plain @ head.T
    expected = written_out(wanted, logits)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(found.agree, logits.argmax(-1) == wanted.argmax(-1))
    (3 * found.loss).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-5, atol=1e-7)


def test_it_is_forward_from_verifier_to_drafter_and_zero_for_equal_logits() -> None:
    """Catches swapped arguments: a drafter that is sure of a wrong token costs more."""
    unsure, sure = torch.tensor([[0.0, 0.0]]), torch.tensor([[8.0, -8.0]])
    head = torch.eye(2)
    assert fused_kl(sure, head, lambda rows: unsure[rows]).loss > 7
    assert fused_kl(unsure, head, lambda rows: sure[rows]).loss < 1
    assert fused_kl(sure, head, lambda rows: sure[rows] + 7).loss.item() == pytest.approx(0)


def test_bfloat16_states_are_compared_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(5, 16, generator=generator).bfloat16()
    head = torch.randn(40, 16, generator=generator).bfloat16()
    wanted = torch.randn(5, 40, generator=generator)
    found = fused_kl(states, head, lambda rows: wanted[rows])
    expected = written_out(wanted.double(), (states @ head.T).double())
    assert found.loss.dtype == torch.float32
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_no_rows_cost_nothing() -> None:
    states = torch.zeros(0, 8, requires_grad=True)
    found = fused_kl(states, torch.zeros(50, 8), lambda rows: torch.zeros(0, 50)[rows])
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert found.loss.item() == 0.0
    assert states.grad is not None


@pytest.mark.parametrize("chunk_rows", [1, 3, 128])
def test_cross_entropy_equals_that_of_whole_logits(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk_rows)
    generator = torch.Generator().manual_seed(4)
    head = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    states = torch.randn(7, 8, generator=generator, dtype=torch.float64)
    wanted = torch.randint(50, (7,), generator=generator)
    wanted[0] = (states[0] @ head.T).argmax()
    ours, plain = (states.clone().requires_grad_() for _ in range(2))
    found = fused_cross_entropy(ours, head, wanted)
    expected = functional.cross_entropy(plain @ head.T, wanted)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(found.agree, (states @ head.T).argmax(-1) == wanted)
    (3 * found.loss).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-5, atol=1e-7)

"""Loss and gradient equal those of the written-out divergence, whatever the chunks."""

from __future__ import annotations

import pytest
import torch

from drafters.training import fused_kl as module
from drafters.training.fused_kl import fused_kl
from drafters.training.losses import kl_divergence


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
    expected = kl_divergence(wanted, logits, torch.ones(7, dtype=torch.bool))
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(found.agree, logits.argmax(-1) == wanted.argmax(-1))
    (3 * found.loss).backward()  # type: ignore[no-untyped-call]
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-5, atol=1e-7)


def test_no_rows_cost_nothing() -> None:
    states = torch.zeros(0, 8, requires_grad=True)
    found = fused_kl(states, torch.zeros(50, 8), lambda rows: torch.zeros(0, 50)[rows])
    found.loss.backward()  # type: ignore[no-untyped-call]
    assert float(found.loss.detach()) == 0.0
    assert states.grad is not None

"""Which back end is used and said, and that plain torch does the arithmetic it claims."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drafters import training
from drafters.training import backends
from drafters.training.backends import TorchBackend, make_backend, resolve_backend
from drafters.training.batches import collate, derived_generator
from parallel.data_parallel import DataParallel
from tests.support.toy_training import ToyTask, toy_config, toy_task, toy_transcripts

ONE = DataParallel.single()


def installed(monkeypatch: pytest.MonkeyPatch, *, deepspeed: bool, launched: bool) -> None:
    """Pretend that DeepSpeed is (not) installed and that ranks have (not) found each other."""
    monkeypatch.setattr(backends, "find_spec", lambda _: object() if deepspeed else None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: launched)


def test_zero_without_deepspeed_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, deepspeed=False, launched=True)
    with pytest.raises(ValueError, match=r"'zero2' needs the package deepspeed.*switchsteer\[cuda"):
        resolve_backend("zero2")


def test_zero_without_torchrun_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed would look for MPI and fail with a traceback."""
    installed(monkeypatch, deepspeed=True, launched=False)
    with pytest.raises(ValueError, match="start with torchrun"):
        resolve_backend("zero1")


def test_automatic_fallback_says_that_it_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, deepspeed=False, launched=True)
    assert resolve_backend("auto") == "torch"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "falling back to plain torch" in caplog.text


@pytest.mark.parametrize(
    ("deepspeed", "launched", "name"),
    [(True, True, "zero1"), (True, False, "torch"), (False, False, "torch")],
)
def test_automatic_choice_is_no_fallback_where_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    deepspeed: bool,  # noqa: FBT001
    launched: bool,  # noqa: FBT001
    name: str,
) -> None:
    installed(monkeypatch, deepspeed=deepspeed, launched=launched)
    assert resolve_backend("auto") == name
    assert not caplog.records


def test_a_deepspeed_that_cannot_be_imported_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, deepspeed=True, launched=True)
    monkeypatch.delattr(training, "deepspeed_backend", raising=False)
    monkeypatch.setitem(sys.modules, "drafters.training.deepspeed_backend", None)
    with pytest.raises(ValueError, match="installed deepspeed cannot be imported"):
        make_backend(toy_task(), toy_config(backend="zero3"), ONE)


def test_a_module_without_trainable_parameters_is_refused() -> None:
    task = toy_task()
    task.module.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="nothing to train"):
        make_backend(task, toy_config(), ONE)


def one_step(task: ToyTask, groups: list[list[int]], **changes: object) -> TorchBackend:
    """A step on the given batches of transcripts."""
    backend = TorchBackend(task, toy_config(gradient_accumulation=len(groups), **changes), ONE)
    for indices in groups:
        loss, _ = backend.forward(collate(toy_transcripts(60), indices), derived_generator(0))
        backend.backward(loss)
    backend.step(0.01)
    return backend


def test_a_step_equals_torchs_own_clip_and_adamw() -> None:
    """The reference is torch's optimizer on the mean loss; betas, decay and clip must arrive."""
    groups = [[0, 13], [1, 14], [2, 15]]
    found = one_step(toy_task(dropout=0.0), groups, weight_decay=0.1, gradient_clip=0.05).unwrap()

    task = toy_task(dropout=0.0)
    parameters = [p for p in task.module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    batches = [collate(toy_transcripts(60), indices) for indices in groups]
    losses = [task.loss(batch, derived_generator(0))[0] for batch in batches]
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(parameters, 0.05)
    optimizer.step()
    wanted = {n: p.detach() for n, p in task.module.named_parameters() if p.requires_grad}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)


def test_bfloat16_keeps_float32_masters() -> None:
    """Updates smaller than a bfloat16 step must not be lost."""
    task = toy_task(dropout=0.0)
    backend = TorchBackend(task, toy_config(dtype="bfloat16"), ONE)
    before = backend.unwrap()
    batch = collate(toy_transcripts(60), [0, 13])
    for _ in range(3):
        backend.backward(backend.forward(batch, derived_generator(0))[0])
        backend.step(1e-6)
    after = backend.unwrap()
    assert {p.dtype for p in task.module.parameters()} == {torch.bfloat16}
    assert all(weight.dtype == torch.float32 for weight in after.values())
    assert (after["head.weight"] != before["head.weight"]).float().mean() > 0.5
    for name, parameter in task.module.named_parameters():
        if parameter.requires_grad:
            assert parameter.detach().equal(after[name].bfloat16())


def test_frozen_parameters_stay_and_are_not_exported() -> None:
    task = toy_task()
    backend = one_step(task, [[0]])
    assert task.module.scale.item() == 1.0
    assert "scale" not in backend.unwrap()
    assert backend.unwrap()["head.weight"].requires_grad is False


def test_save_and_load_give_the_same_next_step(tmp_path: Path) -> None:
    backend = one_step(toy_task(dropout=0.0), [[0], [1]])
    backend.save(tmp_path)
    other = TorchBackend(toy_task(dropout=0.0), toy_config(gradient_accumulation=2), ONE)
    other.load(tmp_path)
    for each in (backend, other):
        for indices in ([3], [4]):
            batch = collate(toy_transcripts(60), indices)
            each.backward(each.forward(batch, derived_generator(0))[0])
        each.step(0.01)
    assert equal(backend.unwrap(), other.unwrap())


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def test_a_checkpoint_of_another_module_is_refused(tmp_path: Path) -> None:
    one_step(toy_task(), [[0]]).save(tmp_path)
    task = toy_task()
    task.module.hidden = torch.nn.Linear(16, 8)
    with pytest.raises(
        ValueError, match=r"hidden.bias has shape \[32\] there and shape \[8\] here"
    ):
        TorchBackend(task, toy_config(), ONE).load(tmp_path)

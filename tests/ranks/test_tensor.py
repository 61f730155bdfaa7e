"""Sharding changes nothing: every TP x PP grid gives the logits and arg-maxes of one device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.models.config import ModelConfig
from parallel.collectives import (
    all_reduce,
    broadcast_floats,
    broadcast_int64,
    gather_top,
    recv_rows,
    send_rows,
)
from parallel.mesh import Mesh
from tests.support.causal import CausalContext
from tests.support.distributed import run_ranks
from tests.support.tiny import QWEN3, SMOLLM, load_decoder, write_checkpoint

pytestmark = pytest.mark.ranks

TOKENS = torch.arange(0, 250, 11)
REPLICATED = replace(QWEN3, num_heads=4, num_kv_heads=2)
GRIDS = [(tp, pp) for tp in (1, 2, 3) for pp in (1, 2, 3)]


def forward_rank(mesh: Mesh, directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """One forward of one rank; the last stage also gives its logits and the best tokens."""
    decoder = load_decoder(directory, config, dtype=torch.float64, mesh=mesh)
    rows = TOKENS
    if not mesh.is_first_stage:
        rows = recv_rows(torch.empty(len(TOKENS), config.hidden_size, dtype=torch.float64), mesh)
    hidden = decoder(rows, CausalContext(len(TOKENS)))
    if not mesh.is_last_stage:
        send_rows(hidden, mesh)
        return {}
    values, ids, runner_up = gather_top(*decoder.top(hidden), mesh)
    logits = decoder.logits(hidden)
    return {"logits": logits, "values": values, "ids": ids, "runner_up": runner_up}


def count_parameters(mesh: Mesh, directory: Path, config: ModelConfig) -> int:
    decoder = load_decoder(directory, config, dtype=torch.float32, mesh=mesh)
    return sum(parameter.numel() for parameter in decoder.parameters())


def sum_rows(mesh: Mesh, num_rows: int) -> Tensor:
    """[num_rows, 7] fp32 rows that differ by rank, summed over the ranks."""
    generator = torch.Generator().manual_seed(mesh.tp_rank)
    return all_reduce(torch.randn(64, 7, generator=generator)[:num_rows].contiguous(), mesh)


def tie_between_shards(mesh: Mesh) -> tuple[Tensor, Tensor, Tensor]:
    """Three rows: a tie between ranks, the last rank best, the first rank holding both best."""
    last = mesh.tp_rank == mesh.tp_size - 1
    values = torch.tensor([5.0, 9.0 if last else 1.0, 7.0 if mesh.tp_rank == 0 else 2.0])
    runner_up = torch.tensor([-1.0, 0.5, 6.5 if mesh.tp_rank == 0 else 0.0])
    ids = torch.tensor([100 * mesh.tp_rank + row for row in range(3)])
    return gather_top(values, ids, runner_up, mesh)


def hear_coordinator(mesh: Mesh) -> tuple[Tensor, Tensor]:
    """What every rank holds after the coordinator has spoken."""
    src = mesh.coordinator_rank
    words = torch.tensor([2**60 + mesh.rank, mesh.rank])
    floats = torch.tensor([0.1 * mesh.rank], dtype=torch.float64)
    return broadcast_int64(words, mesh, src=src), broadcast_floats(floats, mesh, src=src)


def fail_on_rank_one(mesh: Mesh) -> None:
    if mesh.rank == 1:
        raise RuntimeError("the planted fault")
    all_reduce(torch.ones(1), mesh)


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("smollm"), SMOLLM, num_files=2)


@pytest.fixture(scope="module")
def expected(smollm: Path) -> dict[str, Tensor]:
    return forward_rank(Mesh.single(), smollm, SMOLLM)


@pytest.mark.parametrize(("tp", "pp"), GRIDS)
def test_every_grid_gives_the_logits_of_one_device(
    tp: int, pp: int, smollm: Path, expected: dict[str, Tensor]
) -> None:
    """Catches a wrong slice, a missing sum, a layer on the wrong stage; tp 2 is uneven (6, 3)."""
    results = run_ranks(forward_rank, tp, pp, smollm, SMOLLM)
    last_stage = results[-tp:]
    logits = torch.cat([result["logits"] for result in last_stage], dim=1)
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=1e-11)
    for result in last_stage:
        assert torch.equal(result["ids"], expected["ids"])
        for key in ("values", "runner_up"):
            torch.testing.assert_close(result[key], expected[key], rtol=0, atol=1e-11)
            assert torch.equal(result[key], last_stage[0][key])


def test_kv_heads_are_replicated_when_tp_exceeds_them(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, REPLICATED)
    alone = forward_rank(Mesh.single(), directory, REPLICATED)
    results = run_ranks(forward_rank, 4, 1, directory, REPLICATED)
    logits = torch.cat([result["logits"] for result in results], dim=1)
    torch.testing.assert_close(logits, alone["logits"], rtol=0, atol=1e-11)


def test_ranks_together_hold_each_weight_once(smollm: Path) -> None:
    """Catches a rank that materialises more than its part; the norms are the only copies."""
    whole = count_parameters(Mesh.single(), smollm, SMOLLM)
    norms = SMOLLM.hidden_size * (2 * SMOLLM.num_layers + 1)
    assert sum(run_ranks(count_parameters, 2, 1, smollm, SMOLLM)) == whole + norms


def test_a_rows_sum_has_the_same_bits_in_every_block(subtests: pytest.Subtests) -> None:
    """Gloo's own all-reduce fails this: it adds in an order that depends on the offset."""
    whole = run_ranks(sum_rows, 3, 1, 64)[0]
    for num_rows in (1, 2, 5, 33):
        with subtests.test(num_rows=num_rows):
            for part in run_ranks(sum_rows, 3, 1, num_rows):
                assert torch.equal(part, whole[:num_rows])


def test_ties_between_shards_go_to_the_lowest_id() -> None:
    for values, ids, runner_up in run_ranks(tie_between_shards, 3, 1):
        assert ids.tolist() == [0, 201, 2]
        assert values.tolist() == [5.0, 9.0, 7.0]
        assert runner_up.tolist() == [5.0, 1.0, 6.5]


def test_every_rank_hears_the_coordinator_exactly() -> None:
    """The coordinator is rank 2 of 4; int64 must not pass through floats."""
    for words, floats in run_ranks(hear_coordinator, 2, 2):
        assert words.tolist() == [2**60 + 2, 2]
        assert floats.tolist() == [0.2]


def test_a_failing_rank_ends_the_run_with_its_own_error() -> None:
    with pytest.raises(AssertionError, match="the planted fault"):
        run_ranks(fail_on_rank_one, 2, 1)

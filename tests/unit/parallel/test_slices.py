"""The arithmetic of uneven splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel.slices import allowed_tensor_parallel_sizes, even_range, head_ranges


@given(total=st.integers(0, 200), size=st.integers(1, 16))
def test_even_ranges_are_a_partition_in_order(total: int, size: int) -> None:
    runs = [even_range(total, rank, size) for rank in range(size)]
    assert [index for run in runs for index in run] == list(range(total))
    lengths = [len(run) for run in runs]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@given(num_kv=st.integers(1, 12), group=st.integers(1, 9), data=st.data())
def test_split_query_heads_stay_with_their_kv_head(
    num_kv: int, group: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, num_kv))
    queries: list[int] = []
    kvs: list[int] = []
    for rank in range(size):
        query, kv = head_ranges(num_kv * group, num_kv, rank, size)
        assert {head // group for head in query} == set(kv)
        queries += query
        kvs += kv
    assert queries == list(range(num_kv * group))
    assert kvs == list(range(num_kv))


@given(num_kv=st.integers(1, 8), copies=st.integers(2, 6), per_rank=st.integers(1, 4))
def test_replicated_kv_heads_serve_their_own_queries(
    num_kv: int, copies: int, per_rank: int
) -> None:
    size = num_kv * copies
    num_heads = size * per_rank
    queries: list[int] = []
    for rank in range(size):
        query, kv = head_ranges(num_heads, num_kv, rank, size)
        assert {head // (num_heads // num_kv) for head in query} == set(kv)
        queries += query
    assert queries == list(range(num_heads))


def test_smollm_over_two_ranks_is_uneven() -> None:
    assert head_ranges(9, 3, 0, 2) == (range(6), range(2))
    assert head_ranges(9, 3, 1, 2) == (range(6, 9), range(2, 3))


def test_llama_70b_over_sixteen_ranks_replicates_each_kv_head_twice() -> None:
    assert [head_ranges(64, 8, rank, 16)[1].start for rank in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 10])
def test_impossible_sizes_are_refused_with_what_is_allowed(size: int) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel_size={size} .* 1 to 3, 9"):
        head_ranges(9, 3, 0, size)


def test_query_heads_must_be_a_multiple_of_kv_heads() -> None:
    with pytest.raises(ValueError, match="multiple of the kv heads"):
        head_ranges(10, 4, 0, 1)


def test_allowed_sizes_are_those_that_head_ranges_takes() -> None:
    assert allowed_tensor_parallel_sizes(64, 8) == "1 to 8, 16, 32, 64"
    assert allowed_tensor_parallel_sizes(4, 1) == "1, 2, 4"

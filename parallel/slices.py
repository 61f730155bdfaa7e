"""Which part of a full model a rank holds: the arithmetic of uneven splits.

SmolLM2 has 9 query and 3 key-value heads, so tp 2 cannot be even: the first ranks take the
remainder. When tp exceeds the number of kv heads each kv head is replicated (the rule of vLLM and
torchtitan); a naive column split would cut a head in two.
"""

from __future__ import annotations


def even_range(total: int, rank: int, size: int) -> range:
    """Rank ``rank``'s run of ``total`` things; the first ``total % size`` ranks get one more."""
    base, extra = divmod(total, size)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


def head_ranges(num_heads: int, num_kv_heads: int, rank: int, size: int) -> tuple[range, range]:
    """The query and kv heads of tensor-parallel rank ``rank``; query heads follow their kv head.

    Raises:
        ValueError: ``size`` neither splits nor evenly replicates the kv heads.
    """
    if num_heads % num_kv_heads != 0:
        raise ValueError(
            f"a model with {num_heads} query heads and {num_kv_heads} kv heads is not supported: "
            "the query heads must be a multiple of the kv heads"
        )
    if size <= num_kv_heads:
        kv = even_range(num_kv_heads, rank, size)
        group = num_heads // num_kv_heads
        return range(kv.start * group, kv.stop * group), kv
    if size % num_kv_heads != 0 or num_heads % size != 0:
        raise ValueError(
            f"tensor_parallel_size={size} is impossible for {num_heads} query and {num_kv_heads} "
            f"kv heads: allowed are {allowed_tensor_parallel_sizes(num_heads, num_kv_heads)}"
        )
    kv_head = rank * num_kv_heads // size
    return even_range(num_heads, rank, size), range(kv_head, kv_head + 1)


def allowed_tensor_parallel_sizes(num_heads: int, num_kv_heads: int) -> str:
    """The tensor-parallel sizes that ``head_ranges`` accepts, as text for messages."""
    replicated = [
        size
        for size in range(num_kv_heads + 1, num_heads + 1)
        if size % num_kv_heads == 0 and num_heads % size == 0
    ]
    split = "1" if num_kv_heads == 1 else f"1 to {num_kv_heads}"
    return ", ".join([split, *map(str, replicated)])

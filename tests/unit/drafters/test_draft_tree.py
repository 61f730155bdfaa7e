"""Dynamic draft trees against brute force on a tiny vocabulary."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
import torch

from drafters.draft_tree import Children, Level, TreeShape, grow_tree, path_mask, top_children

VOCAB = 4
Path = tuple[int, ...]


class RandomModel:
    """A random distribution after every path; remembers the paths of the rows it ran."""

    def __init__(self, seed: int, top_k: int) -> None:
        self._seed, self._top_k = seed, top_k
        self.rows: list[Path] = []
        self.level_sizes: list[int] = []

    def probabilities(self, path: Path) -> list[float]:
        source = random.Random(f"{self._seed} {path}")
        weights = [source.random() for _ in range(VOCAB)]
        return [weight / sum(weights) for weight in weights]

    def score(self, path: Path) -> float:
        """Log-probability of the whole path."""
        steps = [self.probabilities(path[:end])[path[end]] for end in range(len(path))]
        return sum(math.log(step) for step in steps)

    def children(self, path: Path) -> tuple[list[int], list[float]]:
        probabilities = self.probabilities(path)
        tokens = sorted(range(VOCAB), key=lambda token: -probabilities[token])[: self._top_k]
        return tokens, [math.log(probabilities[token]) for token in tokens]

    def roots(self) -> Children:
        tokens, log_probs = self.children(())
        return Children(token_ids=[tokens], log_probs=[log_probs])

    def expand(self, level: Level) -> Children:
        """Paths are rebuilt from rows alone, as a cache would."""
        first = len(self.rows)
        self.level_sizes.append(len(level.token_ids))
        for token, rows in zip(level.token_ids, level.paths, strict=True):
            parent = self.rows[rows[-2]] if len(rows) > 1 else ()
            self.rows.append((*parent, token))
            assert rows[-1] == len(self.rows) - 1
            assert [self.rows[row] for row in rows] == [
                self.rows[-1][: depth + 1] for depth in range(len(rows))
            ]
        found = [self.children(path) for path in self.rows[first:]]
        return Children(token_ids=[t for t, _ in found], log_probs=[p for _, p in found])


def nodes_of(candidates: Sequence[Path]) -> set[Path]:
    return {path[:end] for path in candidates for end in range(1, len(path) + 1)}


def brute_force(model: RandomModel, shape: TreeShape) -> set[Path]:
    """EAGLE-2, literally: the beam of each level, then the best of all that was seen."""
    level: list[Path] = [(token,) for token in model.children(())[0]]
    seen = list(level)
    for _ in range(shape.depth - 1):
        beam = sorted(level, key=lambda path: -model.score(path))[: shape.top_k]
        level = [(*path, token) for path in beam for token in model.children(path)[0]]
        seen += level
    return set(sorted(seen, key=lambda path: -model.score(path))[: shape.total_nodes - 1])


@pytest.mark.parametrize("seed", range(20))
def test_grown_tree_is_that_of_brute_force(seed: int) -> None:
    """Catches scores of single steps, a beam of the wrong level, a wrong number of nodes."""
    shape = TreeShape(total_nodes=3 + seed, depth=1 + seed % 4, top_k=1 + seed % 3)
    model = RandomModel(seed, shape.top_k)
    candidates = grow_tree(shape, model.roots(), model.expand)
    assert nodes_of(candidates) == brute_force(model, shape)
    assert len(model.level_sizes) == shape.depth - 1
    assert all(size <= shape.top_k for size in model.level_sizes)


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_as_wide_as_the_vocabulary_finds_the_best_paths_of_all(seed: int) -> None:
    """Without pruning the kept nodes are the likeliest among all paths that exist."""
    shape = TreeShape(total_nodes=9, depth=2, top_k=VOCAB)
    model = RandomModel(seed, VOCAB)
    paths = [p for n in (1, 2) for p in itertools.product(range(VOCAB), repeat=n)]
    best = sorted(paths, key=lambda path: -model.score(path))[:8]
    assert nodes_of(grow_tree(shape, model.roots(), model.expand)) == set(best)


@pytest.mark.parametrize("seed", range(10))
def test_candidates_are_leaves_and_cutting_them_keeps_the_best(seed: int) -> None:
    """Catches candidates that are another's prefix, and siblings in the wrong order."""
    shape = TreeShape(total_nodes=12, depth=4, top_k=3)
    model = RandomModel(seed, shape.top_k)
    candidates = grow_tree(shape, model.roots(), model.expand)
    for a, b in itertools.permutations(candidates, 2):
        assert b[: len(a)] != a
    firsts = [model.score(_first_new(candidates[:i], path)) for i, path in enumerate(candidates)]
    assert firsts == sorted(firsts, reverse=True)
    order: dict[Path, list[float]] = {}
    for path in dict.fromkeys(p[:end] for p in candidates for end in range(1, len(p) + 1)):
        order.setdefault(path[:-1], []).append(model.score(path))
    assert all(scores == sorted(scores, reverse=True) for scores in order.values())


def _first_new(earlier: Sequence[Path], path: Path) -> Path:
    """The shortest prefix of ``path`` that no earlier candidate has."""
    known = nodes_of(earlier)
    return next(path[:end] for end in range(1, len(path) + 1) if path[:end] not in known)


def test_a_certain_child_does_not_displace_its_parent() -> None:
    """Equal scores: a child of probability 1 scores like its parent, which must still be kept."""
    certain = Children(token_ids=[[7]], log_probs=[[0.0]])
    candidates = grow_tree(TreeShape(total_nodes=3, depth=3, top_k=1), certain, lambda _: certain)
    assert candidates == ((7, 7),)


def test_top_children_are_normalised_over_the_whole_vocabulary_and_mapped() -> None:
    """Catches a softmax over the kept tokens only, which would overrate every child."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    children = top_children(logits, 2, lambda ids: ids + 100)
    assert children.token_ids == [[101, 102]]
    total = sum(math.exp(value) for value in (1.0, 3.0, 2.0, 0.0))
    expected = [math.log(math.exp(value) / total) for value in (3.0, 2.0)]
    assert children.log_probs[0] == pytest.approx(expected, abs=1e-6)
    assert len(top_children(logits, 9, lambda ids: ids).token_ids[0]) == 4


def test_path_mask_shows_each_node_its_own_path_only() -> None:
    level = Level(token_ids=(5, 6), paths=((0, 2), (1, 3)))
    mask = path_mask(level, first_row=2, dtype=torch.float32)
    assert (mask == 0).tolist() == [[True, False, True, False], [False, True, False, True]]
    assert mask[0, 1] == -torch.inf


@pytest.mark.parametrize("wrong", [{"total_nodes": 1}, {"depth": 0}, {"top_k": 0}], ids=str)
def test_an_empty_tree_is_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"draft tree: {name} is"):
        TreeShape(**wrong)

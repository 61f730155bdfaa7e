"""Batches of transcripts: shuffled, of similar length, padded on the right, dealt to the ranks.

Which transcripts make up a batch is a pure function of the seed, the epoch and the step, so a run
resumes at any step without replaying the steps before. Order: shuffle, sort by length inside pools
of ``POOL_TRANSCRIPTS``, cut into batches of at most ``tokens_per_batch`` padded tokens, shuffle the
batches. Micro-batches of a step lie side by side in that order: R ranks with A micro-batches see
the same batches as one rank with R·A, which is what makes their averaged gradients equal.

Legend: B sequences of a batch, T positions, the longest sequence's length.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drafters.training.capture import Transcript
from drafters.training.config import TrainingConfig
from parallel.data_parallel import DataParallel

POOL_TRANSCRIPTS = 1_024
"""Transcripts sorted by length together: enough for little padding, few enough to stay mixed."""

_PADDING_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Transcripts side by side, padded on the right with token 0."""

    token_ids: Tensor
    """[B, T] int64: prompt, answer, padding."""
    generated: Tensor
    """[B, T] bool: the token was generated. A row predicts the next position's token, so its loss
    counts when the *next* position is True: see ``losses.shift_targets``."""
    lengths: Tensor
    """[B] int64: tokens of each sequence without padding."""
    indices: tuple[int, ...]
    """Places of the transcripts in the data set."""

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths.sum())

    @property
    def num_generated(self) -> int:
        """Tokens that the verifier generated."""
        return int(self.generated.sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return replace(
            self,
            token_ids=self.token_ids.to(device),
            generated=self.generated.to(device),
            lengths=self.lengths.to(device),
        )


class TrainingBatches:
    """The micro-batches of every step, for one rank."""

    def __init__(
        self, transcripts: Sequence[Transcript], config: TrainingConfig, ranks: DataParallel
    ) -> None:
        """Raises ``ValueError`` for no transcripts, one that is too long, or one without answer."""
        check_transcripts(transcripts, config.tokens_per_batch, what="training")
        self._transcripts = transcripts
        self._config = config
        self._ranks = ranks
        self._ends: list[int] = []
        """Global step at which each epoch looked at so far ends."""
        self._plan: tuple[int, list[tuple[int, ...]]] = (-1, [])

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        if self._config.steps is not None:
            return self._config.steps
        assert self._config.epochs is not None
        return self._end_of(self._config.epochs - 1)

    def epoch_of(self, step: int) -> int:
        """The epoch that a step belongs to."""
        while not self._ends or self._ends[-1] <= step:
            self._end_of(len(self._ends))
        return bisect_right(self._ends, step)

    def of_step(self, step: int) -> list[Batch]:
        """This rank's micro-batches of a step.

        What is left of an epoch when no whole step fits is not used. An epoch smaller than one
        step repeats batches.
        """
        epoch = self.epoch_of(step)
        first = (step - (self._ends[epoch - 1] if epoch else 0)) * self._batches_per_step
        plan = self._plan_of(epoch)
        places = range(first + self._ranks.rank, first + self._batches_per_step, self._ranks.size)
        return [collate(self._transcripts, plan[place % len(plan)]) for place in places]

    @property
    def _batches_per_step(self) -> int:
        return self._ranks.size * self._config.gradient_accumulation

    def _end_of(self, epoch: int) -> int:
        while len(self._ends) <= epoch:
            count = len(self._plan_of(len(self._ends)))
            steps = max(1, count // self._batches_per_step)
            self._ends.append((self._ends[-1] if self._ends else 0) + steps)
        return self._ends[epoch]

    def _plan_of(self, epoch: int) -> list[tuple[int, ...]]:
        if self._plan[0] != epoch:
            lengths = [len(entry.token_ids) for entry in self._transcripts]
            self._plan = (epoch, epoch_plan(lengths, self._config, epoch))
        return self._plan[1]


def epoch_plan(lengths: Sequence[int], config: TrainingConfig, epoch: int) -> list[tuple[int, ...]]:
    """Indices of the transcripts in every batch of an epoch; each transcript appears once."""
    generator = derived_generator(config.seed, "order", epoch)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    pools = [order[at : at + POOL_TRANSCRIPTS] for at in range(0, len(order), POOL_TRANSCRIPTS)]
    cut = [batch for pool in pools for batch in _cut(pool, lengths, config.tokens_per_batch)]
    return [cut[place] for place in torch.randperm(len(cut), generator=generator).tolist()]


def validation_batches(
    transcripts: Sequence[Transcript], tokens_per_batch: int, ranks: DataParallel
) -> list[tuple[Batch, bool]]:
    """(batch, whether it counts) of this rank, always the same.

    Every rank gets the same number, because a sharded model's passes are collective: a rank
    without a batch of its own repeats the first, which does not count. Raises ``ValueError`` as
    ``TrainingBatches`` does.
    """
    check_transcripts(transcripts, tokens_per_batch, what="validation")
    lengths = [len(entry.token_ids) for entry in transcripts]
    cut = _cut(list(range(len(transcripts))), lengths, tokens_per_batch)
    rounds = -(-len(cut) // ranks.size)
    places = range(ranks.rank, rounds * ranks.size, ranks.size)
    return [
        (collate(transcripts, cut[place if place < len(cut) else 0]), place < len(cut))
        for place in places
    ]


def collate(transcripts: Sequence[Transcript], indices: Sequence[int]) -> Batch:
    """The transcripts at ``indices`` as one batch."""
    chosen = [transcripts[index] for index in indices]
    lengths_B = torch.tensor([len(entry.token_ids) for entry in chosen])
    shape = (len(chosen), int(lengths_B.max()))
    token_ids_BT = torch.full(shape, _PADDING_ID, dtype=torch.int64)
    generated_BT = torch.zeros(shape, dtype=torch.bool)
    for row, entry in enumerate(chosen):
        length = len(entry.token_ids)
        token_ids_BT[row, :length] = torch.tensor(entry.token_ids)
        generated_BT[row, len(entry.prompt_ids) : length] = True
    return Batch(
        token_ids=token_ids_BT,
        generated=generated_BT,
        lengths=lengths_B,
        indices=tuple(indices),
    )


def check_transcripts(transcripts: Sequence[Transcript], limit: int, *, what: str) -> None:
    """Raises ``ValueError`` for no transcripts, one over ``limit`` tokens, one without answer."""
    if not transcripts:
        raise ValueError(f"there are no {what} transcripts: at least one is needed.")
    for index, entry in enumerate(transcripts):
        if not entry.prompt_ids or not entry.output_ids:
            lacking = "answer" if entry.prompt_ids else "prompt"
            raise ValueError(f"{what} transcript {index} has no {lacking}: leave it out.")
        if len(entry.token_ids) > limit:
            raise ValueError(
                f"{what} transcript {index} has {len(entry.token_ids)} tokens, and "
                f"tokens_per_batch is {limit}: raise it or leave the transcript out."
            )


def fingerprint(transcripts: Sequence[Transcript]) -> str:
    """Sixteen hexadecimal digits that tell one data set from another."""
    digest = hashlib.sha256()
    for entry in transcripts:
        digest.update(repr((entry.prompt_ids, entry.output_ids)).encode())
    return digest.hexdigest()[:16]


def derived_generator(seed: int, *place: object) -> torch.Generator:
    """A CPU generator of its own for each place of a run, such as ("loss", step, rank)."""
    text = repr((seed, *place)).encode()
    # 63 bits: torch takes a signed number.
    number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(number)


def _cut(pool: list[int], lengths: Sequence[int], limit: int) -> list[tuple[int, ...]]:
    """Batches of neighbours by length, each at most ``limit`` tokens with its padding."""
    ordered = sorted(pool, key=lambda index: lengths[index])
    batches: list[list[int]] = []
    for index in ordered:
        if batches and (len(batches[-1]) + 1) * lengths[index] <= limit:
            batches[-1].append(index)
        else:
            batches.append([index])
    return [tuple(batch) for batch in batches]

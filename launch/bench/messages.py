"""What a step's messages weigh and take: ``torchrun --nproc-per-node 2 -m launch.bench.messages``.

Two ranks, each a pipeline stage, and a drafter process, joined by what the engine uses: gloo
between the ranks, a socket to the drafter. Nothing else runs, so the times are those of the
messages alone. EARLY and VERDICT are timed from the moment the sender begins to the moment the
receiver has the message; DRAFT is a question and its reply, from a drafter that thinks no time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from drafters.remote import RemoteDrafter
from engine.block import SequenceRows
from engine.candidates import TokenTree
from engine.channels import BroadcastControl
from engine.control import Verdict, message_length
from engine.copy_source import NO_COPIES
from engine.features import FeatureProjection, FeatureReader
from engine.kv_cache import Commit
from engine.records import SequenceView
from launch.bench.instant_drafter import START_SECONDS, CountedLink, drafter_process
from launch.bench.ranks import joined_mesh, launched_rank, launched_world_size
from launch.cli import parse, user_errors
from parallel.collectives import barrier, broadcast_floats
from parallel.link import Link
from parallel.mesh import Mesh
from ray_app.drafter_link import connect_drafter

PROG = "python -m launch.bench.messages"
LAUNCH = "torchrun --nproc-per-node 2 -m launch.bench.messages"
_WARM_UP = 20
_CONTEXT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFlags:
    """Sizes of a step."""

    rows: int = 6
    """Rows of a step: the pending token and a draft."""
    sequences: int = 1
    """Sequences of a step; each has that many rows."""
    features: int = 576
    """Numbers per row that the drafter reads from the verifier, in bfloat16."""
    accepted: int = 3
    """Tokens that a step commits per sequence."""
    max_rows: int = 512
    """Rows that the fixed-size verdict has room for."""
    rounds: int = 500
    """Times that each message is sent."""

    def __post_init__(self) -> None:
        for name in ("rows", "sequences", "features", "accepted", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}.")
        if self.num_rows > self.max_rows:
            raise ValueError(
                f"--max-rows {self.max_rows} has no room for {self.num_rows} rows of a step."
            )

    @property
    def num_rows(self) -> int:
        """Rows of all sequences."""
        return self.rows * self.sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kind of message."""

    name: str
    way: str
    num_bytes: int
    seconds: Sequence[float]

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        median, slow = statistics.median(self.seconds), statistics.quantiles(self.seconds, n=100)
        return (
            self.name,
            self.way,
            f"{self.num_bytes:,}",
            f"{median * 1e6:.0f}",
            f"{slow[-1] * 1e6:.0f}",
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    description = "Bytes and microseconds of the messages of one step."
    speaks = launched_rank() == 0
    with user_errors(PROG, speaks=speaks):
        flags = parse(MessageFlags, argv, prog=PROG, description=description)
        if launched_world_size() != 2:
            raise ValueError(f"two ranks are needed: {LAUNCH}")
    torch.set_num_threads(1)
    with joined_mesh(1, 2) as mesh:
        found = [_early_scores(flags, mesh), _early_features(flags, mesh), _verdict(flags, mesh)]
        if mesh.is_coordinator:
            found.append(_draft(flags))
            _print(flags, found)
        barrier(mesh)


def _print(flags: MessageFlags, found: Sequence[Measured]) -> None:
    table = Table("message", "from -> to", "bytes", "µs median", "µs 99%")
    for measured in found:
        table.add_row(*measured.cells)
    console = Console()
    console.print(
        f"{flags.sequences} sequences x {flags.rows} rows, {flags.features} features, "
        f"{flags.accepted} tokens accepted, {flags.rounds} rounds"
    )
    console.print(table)


def _early_scores(flags: MessageFlags, mesh: Mesh) -> Measured:
    """The probe's scores of all rows, from the owner of its layer."""
    scores = torch.rand(flags.num_rows)
    return Measured(
        name="EARLY, probe scores",
        way="owner -> coordinator",
        num_bytes=scores.nbytes,
        seconds=_one_way(flags, mesh, 0, lambda: broadcast_floats(scores, mesh, src=0)),
    )


def _early_features(flags: MessageFlags, mesh: Mesh) -> Measured:
    """The partial sums of the features, which travel with the pipeline."""
    projection = FeatureProjection(
        taps=(1,), weights=(torch.zeros(flags.features, 1, dtype=torch.bfloat16),)
    )

    def send() -> None:
        FeatureReader(projection).finish(flags.num_rows, mesh, torch.bfloat16)

    return Measured(
        name="EARLY, partial features",
        way="stage -> next stage",
        num_bytes=flags.num_rows * flags.features * torch.bfloat16.itemsize,
        seconds=_one_way(flags, mesh, 0, send),
    )


def _verdict(flags: MessageFlags, mesh: Mesh) -> Measured:
    """Accepted rows of the last step and rows of the next."""
    length = message_length(max_sequences=max(8, flags.sequences), max_rows=flags.max_rows)
    control = BroadcastControl(mesh, length)
    tree = TokenTree(tuple(range(flags.rows)), tuple(range(-1, flags.rows - 1)))
    slots = range(flags.sequences)
    verdict = Verdict(
        step=1,
        commits=tuple(Commit(slot, 100, tuple(range(flags.accepted))) for slot in slots),
        rows=tuple(SequenceRows(slot, 103, tree, wants_all=True) for slot in slots),
    )

    def send() -> None:
        if mesh.is_coordinator:
            control.send(verdict)
        else:
            control.receive()

    return Measured(
        name="VERDICT",
        way="coordinator -> ranks",
        num_bytes=length * torch.int64.itemsize,
        seconds=_one_way(flags, mesh, mesh.coordinator_rank, send),
    )


def _one_way(
    flags: MessageFlags, mesh: Mesh, sender: int, call: Callable[[], object]
) -> list[float]:
    """Seconds from the sender's beginning to the other's end; one machine has one clock."""
    moments = torch.empty(_WARM_UP + flags.rounds, dtype=torch.float64)
    for index in range(len(moments)):
        barrier(mesh)
        began = time.monotonic()
        call()
        moments[index] = began if mesh.rank == sender else time.monotonic()
    everybody = [torch.empty_like(moments) for _ in range(2)]
    dist.all_gather(everybody, moments)
    taken: list[float] = (everybody[1 - sender] - everybody[sender])[_WARM_UP:].tolist()
    return taken


def _draft(flags: MessageFlags) -> Measured:
    """A question with the newly accepted tokens and features, and the reply."""
    rounds = _WARM_UP + flags.rounds
    num_tokens = _CONTEXT + flags.accepted * rounds
    features = torch.zeros(num_tokens, flags.features, dtype=torch.bfloat16)
    links: list[CountedLink] = []

    def connect() -> Link:
        links.append(CountedLink(connect_drafter(address)))
        return links[-1]

    times = []
    with drafter_process() as address:
        drafter = RemoteDrafter(connect, vocab_size=num_tokens)
        drafter.wait_until_up(START_SECONDS)
        for index in range(rounds):
            length = _CONTEXT + index * flags.accepted
            view = _view(length, features, max(1, flags.rows - 1))
            links[0].num_bytes = 0
            began = time.monotonic()
            drafter.draft(view)
            times.append(time.monotonic() - began)
        drafter.close()
    late = drafter.counters.missed
    return Measured(
        name=f"DRAFT, question and reply{f' ({late} of {rounds} too late)' if late else ''}",
        way="coordinator -> drafter -> coordinator",
        num_bytes=links[0].num_bytes,
        seconds=times[_WARM_UP:],
    )


def _view(length: int, features: Tensor, max_draft_tokens: int) -> SequenceView:
    return SequenceView(
        request_id="r",
        token_ids=list(range(length)),
        copies=NO_COPIES,
        max_draft_tokens=max_draft_tokens,
        probe_score=None,
        features=features[: length - 1],
    )


if __name__ == "__main__":
    main()

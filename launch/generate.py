"""``python -m launch.generate "prompt"``: one answer in the terminal, coloured by who proposed it.

Copied tokens are green, a neural drafter's blue, the verifier's own plain; the counts follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from drafters.assemble import assemble_engine
from engine import metrics
from engine.engine import SpeculativeEngine
from engine.records import Request, StepRecord, TokenEvent, TokenSource
from launch.cli import Positional, parse, user_errors
from launch.recipes import EngineFlags, engine_config
from parallel.mesh import Mesh

PROG = "python -m launch.generate"

STYLES = {"copy": "green", "neural": "blue", "merged": "cyan", "verifier": "", "plain": ""}
"""Of tokens by who proposed them, and of steps by their source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateFlags(EngineFlags):
    """Flags of ``python -m launch.generate``."""

    prompt: Positional[str] = ""
    """What to ask, as the user's turn; '-' reads it from standard input."""
    max_tokens: int = 256
    """Longest answer."""


def main(argv: Sequence[str] | None = None) -> None:
    """Answer one prompt."""
    flags = parse(GenerateFlags, argv, prog=PROG, description="One answer in the terminal.")
    with user_errors(PROG):
        prompt = _prompt(flags)
        config = engine_config(flags)
        if config.num_ranks > 1:
            raise ValueError(
                f"this command runs one rank and {config.num_ranks} are asked for: serve with "
                "python launch/serve70b.py, or give --tensor-parallel-size 1."
            )
        engine = assemble_engine(config, Mesh.single())
        prompt_ids = tuple(engine.tokenizer.chat([{"role": "user", "content": prompt}]))
        request = Request(request_id="answer", prompt_ids=prompt_ids, max_tokens=flags.max_tokens)
        engine.add(request)
    console = Console(highlight=False, soft_wrap=True)
    records = _stream(engine, console)
    console.print(legend(records), style="dim")


def _prompt(flags: GenerateFlags) -> str:
    if flags.max_tokens < 1:
        raise ValueError(f"--max-tokens must be 1 or more, not {flags.max_tokens}.")
    text = sys.stdin.read() if flags.prompt == "-" else flags.prompt
    if not text.strip():
        raise ValueError(f'a prompt is needed: {PROG} --recipe {flags.recipe} "your question".')
    return text


def _stream(engine: SpeculativeEngine, console: Console) -> list[StepRecord]:
    """Write the answer as it grows; Ctrl-C ends it and still gives the counts."""
    records: list[StepRecord] = []
    pieces = engine.tokenizer.stream()
    try:
        while engine.has_work:
            outcome = engine.step()
            records += outcome.records
            for source, ids in _runs_of_source(outcome.events):
                console.print(Text(pieces.push(ids), style=STYLES[source]), end="")
    except KeyboardInterrupt:
        engine.cancel("answer")
    console.print(Text(pieces.finish()))
    return records


def _runs_of_source(events: Iterable[TokenEvent]) -> Iterator[tuple[TokenSource, list[int]]]:
    """Neighbouring tokens of one source together."""
    for event in events:
        pairs = zip(event.sources, event.token_ids, strict=True)
        for source, group in groupby(pairs, key=lambda pair: pair[0]):
            yield source, [token for _, token in group]


def legend(records: Sequence[StepRecord]) -> Text:
    """The counts: tokens, passes, rate, steps by source."""
    steps = metrics.decode_steps(records)
    tokens, efficiency = sum(step.output for step in steps), metrics.block_efficiency(steps)
    seconds = sum(step.verify_ms + step.draft_ms for step in steps) / 1e3
    text = Text(f"\n{tokens} tokens in {len(steps)} verifier passes")
    if efficiency is not None and seconds:
        text.append(f", {efficiency:.2f} a pass, {tokens / seconds:.1f} a second")
    text.append(f", {sum(step.accepted for step in steps)} of them drafted; steps:")
    for source in metrics.DECODE_SOURCES:
        count = sum(step.source == source for step in steps)
        text.append(f" {count} {source}", style=STYLES[source])
    return text


if __name__ == "__main__":
    main()

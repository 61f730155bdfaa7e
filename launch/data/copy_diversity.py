"""CopyDiversity: generated prompts of 17 kinds that make a verifier copy a lot, in part, or hardly.

The SwitchSD paper (arXiv 2609.20186) trains its probe on 1,000 prompts of 17 kinds in three groups,
heavy, medium and light copying. Neither its kinds nor its shares are public, so both are ours:
7 heavy kinds at 40 %, 6 medium ones at 35 %, 4 light ones at 25 %. Content comes from templates
over word banks, is a pure function of the seed, and contains no benchmark's text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from types import MappingProxyType

from launch.data import heavy_kinds, light_kinds, medium_kinds


class CopyGroup(Enum):
    """How much of an answer is expected to be copied from its prompt."""

    HEAVY = "heavy"
    MEDIUM = "medium"
    LIGHT = "light"


SHARES: Mapping[CopyGroup, float] = MappingProxyType(
    {CopyGroup.HEAVY: 0.40, CopyGroup.MEDIUM: 0.35, CopyGroup.LIGHT: 0.25}
)
"""Share of the prompts in each group: our choice."""

KINDS: Mapping[CopyGroup, tuple[Callable[[Random], str], ...]] = MappingProxyType(
    {
        CopyGroup.HEAVY: (
            heavy_kinds.repeat_json,
            heavy_kinds.fix_typo_in_code,
            heavy_kinds.add_docstring,
            heavy_kinds.rename_variable,
            heavy_kinds.extract_quotes,
            heavy_kinds.reformat_table,
            heavy_kinds.csv_to_bullets,
        ),
        CopyGroup.MEDIUM: (
            medium_kinds.summarise_with_quotes,
            medium_kinds.answer_from_passage,
            medium_kinds.translate_config_keys,
            medium_kinds.continue_list,
            medium_kinds.rewrite_email,
            medium_kinds.explain_code_or_data,
        ),
        CopyGroup.LIGHT: (
            light_kinds.open_question,
            light_kinds.short_story,
            light_kinds.maths_word_problem,
            light_kinds.brainstorm,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPrompt:
    """One user message of a known kind."""

    kind: str
    group: CopyGroup
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        return [{"role": "user", "content": self.text}]


def copy_diversity(num_prompts: int = 1_000, *, seed: int = 0) -> tuple[CopyPrompt, ...]:
    """Distinct prompts in random order, kinds of a group in equal numbers.

    Raises ``ValueError`` when ``num_prompts`` is not positive.
    """
    if num_prompts < 1:
        raise ValueError(f"the number of prompts must be at least 1, not {num_prompts}")
    rng = Random(seed)
    seen: set[str] = set()
    prompts = [_fresh(rng, group, kind, seen) for group, kind in _schedule(num_prompts)]
    rng.shuffle(prompts)
    return tuple(prompts)


def _schedule(num_prompts: int) -> list[tuple[CopyGroup, Callable[[Random], str]]]:
    """The kind of every prompt: shares by largest remainder, then round robin inside a group."""
    counts = {group: int(num_prompts * share) for group, share in SHARES.items()}
    by_remainder = sorted(SHARES, key=lambda group: counts[group] - num_prompts * SHARES[group])
    for group in by_remainder[: num_prompts - sum(counts.values())]:
        counts[group] += 1
    return [
        (group, KINDS[group][index % len(KINDS[group])])
        for group, count in counts.items()
        for index in range(count)
    ]


def _fresh(
    rng: Random, group: CopyGroup, kind: Callable[[Random], str], seen: set[str], tries: int = 50
) -> CopyPrompt:
    """A prompt whose text was not drawn before; a kind with few texts may repeat in the end."""
    text = kind(rng)
    for _ in range(tries):
        if text not in seen:
            break
        text = kind(rng)
    seen.add(text)
    return CopyPrompt(kind=kind.__name__, group=group, text=text)

"""From flags to everything a table needs, checked before anything is started."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from engine.config import EngineConfig
from engine.sampling import SamplingParams
from engine.tokenizer import load_tokenizer
from engine.weights import resolve_model
from launch.bench.cells import Row, Settings
from launch.bench.methods import VANILLA, Variant, parse_variants, shared_speculation
from launch.bench.peers.client import MODES
from launch.bench.workloads import (
    HUMANEVAL,
    Prompt,
    WorkloadSpec,
    check_lengths,
    load_workload,
    parse_workload,
)
from launch.cli import Positional, Repeated
from launch.recipes import EngineFlags, engine_config

CHAIN = "draft_min_probability=0.05"
"""Chains end early, as in the SmolLM2 recipe."""
NEURAL = f"drafter=eagle3:{CHAIN}"
LOOKAHEADS = (1, 2, 3, 5, 7)

TABLES = {
    "table1": ",".join(
        (
            "vanilla,prompt_lookup,copy_spec,sam_decoding,lookahead,medusa",
            f"eagle3=eagle3:{CHAIN}",
            f"rasd=rasd:draft_tree_top_k=1:{CHAIN}",
            f"bandit_spec=bandit_spec:{NEURAL}",
            f"switch_sd=switch_sd:{NEURAL}",
            f"switch_sd_3=switch_sd:copy_match_length=3:{NEURAL}",
            f"switch_sd_plus=switch_sd_plus:{NEURAL}",
        )
    ),
    "table2": "vanilla,small_model,copy_spec:drafter=small_model,switch_sd:drafter=small_model",
    "table3": ",".join(
        [
            "vanilla",
            *(f"eagle3_{n}=eagle3:num_speculative_tokens={n}" for n in LOOKAHEADS),
            *(
                f"switch_sd_{n}=switch_sd:drafter=eagle3:num_speculative_tokens={n}"
                for n in LOOKAHEADS
            ),
        ]
    ),
    "table4": f"vanilla,prompt_lookup,copy_spec,eagle3=eagle3:{CHAIN},switch_sd=switch_sd:{NEURAL},"
    f"switch_sd_plus=switch_sd_plus:{NEURAL}",
    "table5": "vanilla,prompt_lookup,copy_spec,sam_decoding,lookahead,switch_sd,switch_sd_plus",
    "sd2": "vanilla,small_model,steered",
    "figure3": "vanilla,open=switch_sd:probe_threshold=0:row_budget=full",
}
"""Tables and their rows: SwitchSD's Tables 1 (all methods), 2 (speculation with a small model), 3
(best lookahead), 4 (temperatures) and 5 (context alone), and SD²'s; and Figure 3's."""

TEMPERATURES = {"table4": (0.0, 0.25, 0.5, 0.75, 1.0)}

OURS = "switchsteer"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags(EngineFlags):
    """Flags of ``python -m launch.bench``."""

    table: Positional[str] = "table1"
    """Which table: table1 compares methods, table2 with a small model, table3 lookaheads, table4
    temperatures, table5 without a drafter, sd2 steered drafting; figure3 shows copies by
    the probe's verdict."""
    methods: str | None = None
    """Rows, comma separated; METHOD:KEY=VALUE changes a speculative-config key for one row."""
    workload: Repeated[tuple[str, ...]] = ()
    """NAME, NAME:LIMIT or a JSONL file with a prompt per line, once per workload; by default
    humaneval."""
    data_dir: Path | None = None
    """Folder with specbench.jsonl and math500.jsonl, for the workloads that come from them."""
    limit: int | None = None
    """Number of prompts; by default all of the workload."""
    max_tokens: int = 128
    """Longest answer."""
    temperature: Repeated[tuple[float, ...]] = ()
    """0 decodes greedily; above, every method samples with the same seed. Once per temperature; by
    default 0, and for table4 from 0 to 1."""
    out: Path = Path("results/table1")
    """Result directory; a broken-off run continues there."""
    threads: int | None = None
    """Threads of a whole system, all its ranks together; by default the machine's cores."""
    peer: Repeated[tuple[str, ...]] = ()
    """Another library in the same run: transformers or vllm."""
    peer_python: str | None = None
    """Python of the environment that has vllm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure."""

    config: EngineConfig
    variants: tuple[Variant, ...]
    peers: tuple[str, ...]
    peer_python: str | None
    model_directory: Path
    prompts: tuple[Prompt, ...]
    settings: Settings
    out: Path

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows of the table, our vanilla first."""
        return (*map(_our_row, self.variants), *_peer_rows(self.peers))


def make_plans(flags: BenchFlags, *, world_size: int) -> tuple[Plan, ...]:
    """Check the flags and read the prompts: a plan per workload.

    Raises:
        ValueError: whatever the user got wrong, in one sentence.
    """
    _check(flags)
    temperatures = flags.temperature or TEMPERATURES.get(flags.table, (0.0,))
    workloads = [
        parse_workload(text, limit=flags.limit, data_dir=flags.data_dir)
        for text in flags.workload or (HUMANEVAL,)
    ]
    return tuple(
        _plan(flags, workload, temperature, world_size=world_size)
        for workload in workloads
        for temperature in temperatures
    )


def _plan(
    flags: BenchFlags, workload: WorkloadSpec, temperature: float, *, world_size: int
) -> Plan:
    methods = TABLES[flags.table] if flags.methods is None else flags.methods
    variants = parse_variants(methods, flags.speculative_config)
    config = _config(flags, variants, world_size)
    directory = resolve_model(config.model)
    prompts = load_workload(workload, load_tokenizer(directory))
    check_lengths(prompts, max_tokens=flags.max_tokens, max_model_len=config.max_model_len)
    return Plan(
        config=config,
        variants=variants,
        peers=tuple(flags.peer),
        peer_python=flags.peer_python,
        model_directory=directory,
        prompts=prompts,
        settings=replace(
            _settings(flags, config, workload.name, len(prompts)), temperature=temperature
        ),
        out=flags.out,
    )


def _check(flags: BenchFlags) -> None:
    if flags.table not in TABLES:
        raise ValueError(f"TABLE must be one of {', '.join(TABLES)}, not {flags.table!r}.")
    for name in ("limit", "max_tokens", "threads"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be 1 or more, not {value}.")
    for temperature in flags.temperature:
        SamplingParams(temperature=temperature)
    if flags.peer and any(flags.temperature):
        raise ValueError("--peer rows are greedy: leave --temperature out, or the peers.")
    for peer in flags.peer:
        if peer not in MODES:
            raise ValueError(f"--peer must be one of {', '.join(MODES)}, not {peer!r}.")
        if flags.peer.count(peer) > 1:
            raise ValueError(f"--peer names {peer} twice.")
    if flags.out.exists() and not flags.out.is_dir():
        raise ValueError(f"--out must be a directory, and {str(flags.out)!r} is a file.")


def _config(flags: BenchFlags, variants: tuple[Variant, ...], world_size: int) -> EngineConfig:
    """One engine for all rows: one sequence at a time, ranks as launched."""
    config = engine_config(replace(flags, speculative_config=None))
    if flags.tensor_parallel_size is None:
        size = max(1, world_size // config.pipeline_parallel_size)
        config = replace(config, tensor_parallel_size=size)
    if config.num_ranks != world_size:
        raise ValueError(
            f"--tensor-parallel-size {config.tensor_parallel_size} times --pipeline-parallel-size "
            f"{config.pipeline_parallel_size} needs {config.num_ranks} processes and {world_size} "
            f"were started: torchrun --nproc-per-node {config.num_ranks} -m launch.bench ..."
        )
    if flags.threads is not None:
        config = replace(config, num_threads=max(1, flags.threads // config.num_ranks))
    return replace(
        config,
        max_num_seqs=1,
        enable_prefix_caching=False,
        speculation=shared_speculation(variants),
    )


def _settings(flags: BenchFlags, config: EngineConfig, workload: str, num_prompts: int) -> Settings:
    per_rank = config.threads_per_rank(len(os.sched_getaffinity(0)))
    return Settings(
        workload=workload,
        recipe=flags.recipe,
        model=config.model,
        dtype=config.dtype,
        exactness=config.exactness,
        kernels=config.kernels,
        threads=per_rank * config.num_ranks,
        tp=config.tensor_parallel_size,
        pp=config.pipeline_parallel_size,
        prompts=num_prompts,
        max_tokens=flags.max_tokens,
    )


def _our_row(variant: Variant) -> Row:
    return Row(
        label=variant.label,
        method=variant.speculation.method,
        system=OURS,
        base=VANILLA,
        speculation=asdict(variant.speculation),
    )


def _peer_rows(peers: tuple[str, ...]) -> list[Row]:
    return [
        Row(label=f"{peer}:{mode}", method=f"{peer}:{mode}", system=peer, base=f"{peer}:{modes[0]}")
        for peer, modes in MODES.items()
        if peer in peers
        for mode in modes
    ]

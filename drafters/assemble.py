"""The one composition root: a configuration and a mesh become an engine.

Used unchanged in one process, under torchrun and in Ray actors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from drafters.copy_index import CopyIndex
from drafters.neural import load_drafter, load_projection
from drafters.pretrained import shipped_gate, shipped_probe
from drafters.remote import RemoteDrafter
from engine.admission import SchedulerLimits
from engine.attention.merged import MergedAttention
from engine.attention.rowwise import RowwiseAttention
from engine.channels import BroadcastControl, LocalControl
from engine.config import EngineConfig
from engine.control import ControlChannel, message_length
from engine.copy_source import CopySource
from engine.drafting import Drafters, LoadedDrafter, OneByOne
from engine.engine import SpeculativeEngine
from engine.exactness import RowPadding, find_row_padding
from engine.features import Projection
from engine.gate import Gate, load_gate
from engine.grammar import GrammarFactory
from engine.interfaces import BatchDrafter
from engine.kernels import install_kernels
from engine.kv_cache import KVCache, KVShape
from engine.models.decoder import Attention, Decoder
from engine.policies import NO_GATE
from engine.probe import Probe, load_probe
from engine.records import CopyIndexShape
from engine.runner import ModelRunner, PlacedProbe, Readouts
from engine.scheduler import Scheduler
from engine.speculation import DrafterKey, SpeculationConfig
from engine.step_context import AttentionBackend
from engine.step_time import StepTimeTable, measure_step_times
from engine.timing import sibling_rows
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import load_model, resolve_model
from parallel.link import Link
from parallel.mesh import Mesh
from parallel.pipeline import stage_of_layer

MAX_STEP_ROWS = 512
"""The longest prompt chunk, and the size of the KV scratch."""

NEAR_TIE_MARGINS = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Logit margins within which rounding may flip an arg-max (docs/losslessness.md)."""


def assemble_engine(
    config: EngineConfig,
    mesh: Mesh,
    *,
    also: Sequence[SpeculationConfig] = (),
    connect_drafter: Callable[[], Link] | None = None,
) -> SpeculativeEngine:
    """Load this rank's shard and wire the engine; collective over the mesh.

    ``also`` names further methods that the engine must be able to switch to. With
    ``connect_drafter`` the neural drafter is another process, reached by that function; without,
    the coordinator loads and runs it itself.

    Raises:
        ValueError: a model, probe or shape that does not fit; one sentence.
    """
    torch.set_num_threads(config.threads_per_rank(os.cpu_count() or 1))
    dtype = getattr(torch, config.dtype)
    source = resolve_model(config.model)
    tokenizer = load_tokenizer(source)
    readers = Drafters(probe=configured_probe(config), gate=configured_gate(config, also))
    wanted = _distinct_drafters(config, also)
    projections = [load_projection(one) for one in wanted]
    model = load_model(str(source), dtype=dtype, mesh=mesh, max_model_len=config.max_model_len)
    for probe in readers.probes:
        probe.check(model.config, config.model)
    kv = _kv_cache(config, model, dtype)
    native = install_kernels(model, config.kernels)
    attention = _attention(config, dtype, native=native)
    padding = RowPadding()
    if config.exactness == "strict" and dtype != torch.float64:
        padding = find_row_padding(model, kv, mesh, attention)
    runner = ModelRunner(
        model=model,
        kv=kv,
        mesh=mesh,
        attention=attention,
        padding=padding,
        readouts=Readouts(
            probes=_placed(readers.probes, model, mesh),
            projections=tuple(found for found in projections if found is not None),
        ),
    )
    step_times = measure_step_times(
        lambda rows: _discard(runner.run(sibling_rows(rows, kv))), max_rows=min(48, kv.max_rows)
    )
    drafters, scheduler = readers, None
    if mesh.is_coordinator:
        vocab_size = model.config.vocab_size
        neural = _neural_drafters(wanted, projections, connect_drafter, vocab_size=vocab_size)
        drafters = replace(readers, neural=neural)
        scheduler = _scheduler(config, model, tokenizer, drafters, step_times)
    return SpeculativeEngine(
        runner=runner,
        control=_control(config, mesh),
        scheduler=scheduler,
        tokenizer=tokenizer,
        drafters=drafters,
    )


def _distinct_drafters(
    config: EngineConfig, also: Sequence[SpeculationConfig]
) -> list[EngineConfig]:
    """One configuration per neural drafter that is wanted; the methods may share them."""
    found: dict[DrafterKey, EngineConfig] = {}
    for speculation in (config.speculation, *also):
        if speculation.drafter != "none":
            found.setdefault(speculation.drafter_key, replace(config, speculation=speculation))
    return list(found.values())


def _neural_drafters(
    wanted: Sequence[EngineConfig],
    projections: Sequence[Projection | None],
    connect: Callable[[], Link] | None,
    *,
    vocab_size: int,
) -> dict[DrafterKey, LoadedDrafter]:
    """The drafters by key, each with the number of its projection, counted from 1."""
    loaded, number = {}, 0
    for config, projection in zip(wanted, projections, strict=True):
        number += projection is not None
        drafter: BatchDrafter = (
            OneByOne(load_drafter(config))
            if connect is None
            else RemoteDrafter(connect, vocab_size=vocab_size)
        )
        loaded[config.speculation.drafter_key] = LoadedDrafter(
            drafter=drafter, projection=0 if projection is None else number
        )
    return loaded


def _discard(result: object) -> None:
    """Step times need the pass, not its result."""


def configured_probe(config: EngineConfig) -> Probe | None:
    """The probe the user names, else the one shipped for the model, if any."""
    path = config.speculation.probe or shipped_probe(config.model)
    if path is not None:
        return load_probe(Path(path))
    if config.speculation.reads_probe:
        raise ValueError(
            f"method 'switch_sd' needs a probe and none is shipped for {config.model}: train one "
            "with python -m launch.train probe and give it as speculative-config key 'probe'"
        )
    return None


def configured_gate(config: EngineConfig, also: Sequence[SpeculationConfig] = ()) -> Gate | None:
    """The gate that the first method that needs one names, else the one shipped for the model."""
    for speculation in (config.speculation, *also):
        if speculation.reads_gate:
            path = speculation.gate or shipped_gate(config.model)
            if path is None:
                raise ValueError(NO_GATE)
            return load_gate(Path(path))
    return None


def _kv_cache(config: EngineConfig, model: Decoder, dtype: torch.dtype) -> KVCache:
    shape = KVShape(
        layer_indices=model.layer_indices,
        num_slots=config.max_num_seqs,
        num_kv_heads=num_local_kv_heads(model),
        head_dim=model.config.head_dim,
        max_length=config.max_model_len,
        max_rows=max_step_rows(config),
    )
    return KVCache(shape, dtype=dtype)


def max_step_rows(config: EngineConfig) -> int:
    """Rows of one step at most; every sequence must be able to decode in it."""
    return max(MAX_STEP_ROWS, config.max_num_seqs)


def num_local_kv_heads(model: Decoder) -> int:
    """Kv heads of this rank; asked before native kernels take the layers' place."""
    attention = next(iter(model.layers.values())).attention
    assert isinstance(attention, Attention)
    return attention.num_kv_heads


def _attention(config: EngineConfig, dtype: torch.dtype, *, native: bool) -> AttentionBackend:
    """Native layers attend by themselves; of torch's, only row-wise attention is invariant."""
    if config.exactness == "strict" and dtype != torch.float64 and not native:
        return RowwiseAttention
    return MergedAttention


def _placed(probes: Sequence[Probe], model: Decoder, mesh: Mesh) -> tuple[PlacedProbe, ...]:
    """With the stages that hold their layers."""
    layers = model.config.num_layers
    return tuple(
        PlacedProbe(probe=probe, stage=stage_of_layer(probe.layer, layers, mesh.num_stages))
        for probe in probes
    )


def _control(config: EngineConfig, mesh: Mesh) -> ControlChannel:
    if mesh.world_size == 1:
        return LocalControl()
    length = message_length(max_sequences=config.max_num_seqs, max_rows=max_step_rows(config))
    return BroadcastControl(mesh, length)


def _scheduler(
    config: EngineConfig,
    model: Decoder,
    tokenizer: Tokenizer,
    drafters: Drafters,
    step_times: StepTimeTable,
) -> Scheduler:
    limits = SchedulerLimits(
        num_slots=config.max_num_seqs,
        max_rows=max_step_rows(config),
        max_model_len=config.max_model_len,
        stop_ids=frozenset(tokenizer.eos_token_ids),
        near_tie_margin=NEAR_TIE_MARGINS[getattr(torch, config.dtype)],
        vocab_size=model.config.vocab_size,
        max_kv_tokens=config.max_kv_tokens,
        reuses_prefixes=config.enable_prefix_caching,
    )
    return Scheduler(
        limits,
        drafting=drafters.drafting(config.speculation),
        drafters=drafters,
        new_copy_index=new_copy_index,
        grammars=GrammarFactory(tokenizer, model.config.vocab_size),
        step_times=step_times,
    )


def new_copy_index(shape: CopyIndexShape) -> CopySource:
    """An empty copy index of the shape a policy asks for."""
    return CopyIndex(shape.match_lengths, shape.max_tokens, min_match=shape.min_match)

"""Whole engines on tiny random models, without files: in one process or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from drafters.assemble import new_copy_index, num_local_kv_heads
from drafters.remote import RemoteDrafter
from engine.admission import SchedulerLimits
from engine.attention.merged import MergedAttention
from engine.channels import BroadcastControl, LocalControl
from engine.control import message_length
from engine.drafting import Drafters, Drafting, LoadedDrafter, OneByOne
from engine.engine import SpeculativeEngine
from engine.exactness import RowPadding
from engine.features import Projection
from engine.gate import Gate
from engine.interfaces import BatchDrafter, NeuralDrafter, SwitchingPolicy
from engine.kv_cache import KVCache, KVShape
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import shard_decoder
from engine.probe import Probe
from engine.records import Request, TokenEvent
from engine.runner import ModelRunner, PlacedProbe, Readouts
from engine.scheduler import Scheduler
from engine.speculation import SpeculationConfig, speculation
from engine.step_context import AttentionBackend
from parallel.mesh import Mesh
from parallel.pipeline import stage_of_layer

MAX_ROWS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyEngine:
    """What a test may vary."""

    config: ModelConfig
    seed: int = 0
    dtype: torch.dtype = torch.float64
    max_model_len: int = 256
    num_slots: int = 4
    max_rows: int = MAX_ROWS
    attention: AttentionBackend = MergedAttention
    stop_ids: frozenset[int] = frozenset()
    speculation: SpeculationConfig = field(default_factory=lambda: speculation("vanilla"))
    policy: SwitchingPolicy | None = None
    probe: Probe | None = None
    gate: Gate | None = None
    drafter: NeuralDrafter | None = None
    """Serves whatever drafter the configuration names; on the coordinator."""
    projection: Projection | None = None
    """What the drafter reads."""
    max_kv_tokens: int | None = None
    reuses_prefixes: bool = True


def random_decoder(
    config: ModelConfig, *, seed: int = 0, max_model_len: int = 256, dtype: torch.dtype
) -> Decoder:
    """A full decoder with random weights; large enough weights that greedy text is not constant."""
    model = Decoder(config, max_model_len=max_model_len, dtype=dtype, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        scale = 1.0 if "embed" in name or "head" in name else parameter.shape[-1] ** -0.5
        values = 1.0 + 0.1 * noise if name.endswith("norm.weight") else noise * scale
        parameter.data.copy_(values)
    return model.eval()


def build_engine(tiny: TinyEngine, mesh: Mesh) -> SpeculativeEngine:
    """This rank's engine of a tiny model."""
    model = random_decoder(
        tiny.config, seed=tiny.seed, max_model_len=tiny.max_model_len, dtype=tiny.dtype
    )
    shard_decoder(model, mesh)
    shape = KVShape(
        layer_indices=model.layer_indices,
        num_slots=tiny.num_slots,
        num_kv_heads=num_local_kv_heads(model),
        head_dim=tiny.config.head_dim,
        max_length=tiny.max_model_len,
        max_rows=tiny.max_rows,
    )
    runner = ModelRunner(
        model=model,
        kv=KVCache(shape, dtype=tiny.dtype),
        mesh=mesh,
        attention=tiny.attention,
        padding=RowPadding(),
        readouts=Readouts(
            probes=_placed(tiny, mesh),
            projections=() if tiny.projection is None else (tiny.projection,),
        ),
    )
    length = message_length(max_sequences=tiny.num_slots, max_rows=tiny.max_rows)
    return SpeculativeEngine(
        runner=runner,
        control=LocalControl() if mesh.world_size == 1 else BroadcastControl(mesh, length),
        scheduler=_scheduler(tiny) if mesh.is_coordinator else None,
        tokenizer=None,  # type: ignore[arg-type]
        drafters=_drafters(tiny),
    )


def _placed(tiny: TinyEngine, mesh: Mesh) -> tuple[PlacedProbe, ...]:
    layers = tiny.config.num_layers
    return tuple(
        PlacedProbe(probe=probe, stage=stage_of_layer(probe.layer, layers, mesh.num_stages))
        for probe in _drafters(tiny).probes
    )


def _drafters(tiny: TinyEngine) -> Drafters:
    if tiny.drafter is None:
        return Drafters(probe=tiny.probe, gate=tiny.gate)
    drafter = tiny.drafter
    batched: BatchDrafter = drafter if isinstance(drafter, RemoteDrafter) else OneByOne(drafter)
    loaded = LoadedDrafter(drafter=batched, projection=int(tiny.projection is not None))
    return Drafters(probe=tiny.probe, gate=tiny.gate, neural={tiny.speculation.drafter_key: loaded})


def _drafting(tiny: TinyEngine) -> Drafting:
    drafting = _drafters(tiny).drafting(tiny.speculation)
    return drafting if tiny.policy is None else replace(drafting, policy=tiny.policy)


def _scheduler(tiny: TinyEngine) -> Scheduler:
    limits = SchedulerLimits(
        num_slots=tiny.num_slots,
        max_rows=tiny.max_rows,
        max_model_len=tiny.max_model_len,
        stop_ids=tiny.stop_ids,
        near_tie_margin=0.0,
        vocab_size=tiny.config.vocab_size,
        max_kv_tokens=tiny.max_kv_tokens,
        reuses_prefixes=tiny.reuses_prefixes,
    )
    return Scheduler(
        limits,
        drafting=_drafting(tiny),
        drafters=_drafters(tiny),
        new_copy_index=new_copy_index,
        step_times=None,
    )


def answers(
    engine: SpeculativeEngine, prompts: Sequence[Sequence[int]], *, max_tokens: int
) -> list[tuple[int, ...]]:
    """Run all prompts together and return each one's output tokens."""
    requests = [
        Request(request_id=str(index), prompt_ids=tuple(prompt), max_tokens=max_tokens)
        for index, prompt in enumerate(prompts)
    ]
    return [
        tuple(token for event in events for token in event.token_ids)
        for events in events_of(engine, requests)
    ]


def events_of(engine: SpeculativeEngine, requests: Sequence[Request]) -> list[list[TokenEvent]]:
    """Run all requests together and return each one's events."""
    events: dict[str, list[TokenEvent]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for event in engine.step().events:
            events[event.request_id].append(event)
    return list(events.values())

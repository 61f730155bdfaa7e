"""Every neural drafter with random weights, beside the tiny verifier of the lossless tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from drafters.cached_model import CachedModel, limit_vocabulary
from drafters.draft_tree import ChainShape, TreeShape
from drafters.eagle3 import Eagle3Drafter
from drafters.eagle3_config import Eagle3Config
from drafters.eagle3_head import Eagle3Head
from drafters.medusa import MedusaDrafter
from drafters.medusa_heads import MedusaConfig, MedusaHeads
from drafters.small_model import SmallModelDrafter
from drafters.static_tree import StaticTree, likeliest_tree
from drafters.steered import SteeredDrafter, install_steering
from drafters.steering import SteeringHead, SteeringShape
from drafters.vocabulary import DraftVocabulary
from engine.features import NormedState, Projection
from engine.interfaces import NeuralDrafter
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.layers import RMSNorm
from tests.support.engines import random_decoder

SHAPES: dict[str, ChainShape | TreeShape] = {
    "chain": ChainShape(num_tokens=4),
    "tree": TreeShape(total_nodes=14, depth=3, top_k=3),
}
MAX_LENGTH = 256


@dataclass(frozen=True)
class Part:
    """A drafter and what it reads."""

    drafter: NeuralDrafter
    projection: Projection | None = None


def random_eagle3_head(verifier: ModelConfig) -> Eagle3Head:
    """A head over two thirds of the tokens, reading the first three layers."""
    size = verifier.vocab_size * 2 // 3
    config = Eagle3Config(
        layer=verifier,
        draft_vocab_size=size,
        target_hidden_size=verifier.hidden_size,
        taps=(1, 2, 3),
        fc_norm=True,
    )
    order = torch.randperm(verifier.vocab_size, generator=torch.Generator().manual_seed(2))
    vocabulary = DraftVocabulary.most_frequent(order, size)
    head = Eagle3Head(config, vocabulary, dtype=torch.float64, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(4)
    head.initialise(generator, std=0.2)
    head.embed.weight.data.normal_(generator=generator)
    return head


def eagle3(verifier: ModelConfig, shape: ChainShape | TreeShape) -> Part:
    head = random_eagle3_head(verifier)
    return Part(Eagle3Drafter(head, shape), head.projection(torch.float64))


def medusa(verifier: ModelConfig, shape: ChainShape | TreeShape) -> Part:
    """Two random heads; the verifier that they read is the one that the engine is built with."""
    model = random_decoder(verifier, dtype=torch.float64)
    assert isinstance(model.norm, RMSNorm)
    assert model.head is not None
    vocabulary = DraftVocabulary.whole(verifier.vocab_size)
    config = MedusaConfig(
        num_heads=2,
        hidden_size=verifier.hidden_size,
        vocab_size=verifier.vocab_size,
        draft_vocab_size=vocabulary.size,
    )
    heads = MedusaHeads(config, vocabulary, dtype=torch.float64, device=torch.device("cpu"))
    heads.weight.data.normal_(std=0.2, generator=torch.Generator().manual_seed(6))
    heads.set_projection(0, model.head.get_parameter("weight"))
    falling = [0.5**rank for rank in range(1, 7)]
    tree = likeliest_tree([falling, falling], 24)
    tree = tree if isinstance(shape, TreeShape) else StaticTree(nodes=((0,), (0, 0)))
    return Part(MedusaDrafter(heads, tree), NormedState(tap=verifier.num_layers, norm=model.norm))


def small_model(verifier: ModelConfig, shape: ChainShape | TreeShape) -> Part:
    cached = CachedModel(_small(verifier), num_slots=4, max_length=MAX_LENGTH)
    return Part(SmallModelDrafter(cached, shape))


def steered(verifier: ModelConfig, shape: ChainShape | TreeShape) -> Part:
    model = _small(verifier)
    head = random_steering_head(verifier, model.config)
    steering = install_steering(model, head)
    cached = CachedModel(model, num_slots=4, max_length=MAX_LENGTH)
    drafter = SteeredDrafter(SmallModelDrafter(cached, shape), steering)
    return Part(drafter, head.projection(torch.float64))


def random_steering_head(
    verifier: ModelConfig,
    drafter: ModelConfig,
    kind: type[SteeringHead] = SteeringHead,
    *,
    strength: float = 1.0,
) -> SteeringHead:
    """Random weights for all layers of a drafter; strength 0 is an untrained head."""
    shape = SteeringShape(
        verifier_hidden_size=verifier.hidden_size,
        taps=(1, 2, 3),
        drafter_hidden_size=drafter.hidden_size,
        drafter_intermediate_size=drafter.intermediate_size,
        layers=tuple(range(drafter.num_layers)),
    )
    head = kind(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    for parameter in head.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if strength > 0:
            parameter.data.copy_(strength * noise * parameter.shape[-1] ** -0.5)
    return head


def _small(verifier: ModelConfig) -> Decoder:
    """The verifier without its last layer, so that some drafts are right and some are not."""
    config = replace(verifier, num_layers=verifier.num_layers - 1)
    model = random_decoder(config, max_model_len=MAX_LENGTH, dtype=torch.float64)
    limit_vocabulary(model, verifier.vocab_size)
    return model


DRAFTERS: dict[str, Callable[[ModelConfig, ChainShape | TreeShape], Part]] = {
    "eagle3": eagle3,
    "small_model": small_model,
    "steered": steered,
    "medusa": medusa,
}
"""By their names in a configuration."""

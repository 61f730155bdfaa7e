"""The verifier's shape without its weights: shipped for the recipes' models, else read."""

from __future__ import annotations

from importlib.resources import as_file, files

from engine.config import EngineConfig
from engine.models.config import ModelConfig
from engine.weights import read_model_config, resolve_model


def verifier_shape(model: str) -> ModelConfig:
    """Of a model named as users do.

    Raises:
        ValueError: a model that is neither shipped nor here; one sentence.
    """
    shipped = files("launch.plan") / "models" / model.rpartition("/")[2]
    if shipped.is_dir():
        with as_file(shipped) as folder:
            return read_model_config(folder)
    return read_model_config(resolve_model(model))


def num_weights(model: ModelConfig) -> tuple[float, float]:
    """Weights of one layer, and of embedding and vocabulary head together."""
    hidden = model.hidden_size
    attention = hidden * (2 * model.query_size + 2 * model.kv_size)
    layer = attention + 3 * hidden * model.intermediate_size + 2 * hidden
    vocabulary = hidden * model.vocab_size * (1 if model.tie_word_embeddings else 2)
    return float(layer), float(vocabulary)


def weight_bytes(config: EngineConfig) -> float:
    """Bytes per weight as the recipe stores them."""
    return {"bfloat16": 2.0, "float32": 4.0, "float64": 8.0}[config.dtype]

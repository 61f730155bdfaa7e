"""Weights: from what a user names as a model to this rank's filled decoder."""

from engine.weights.loading import load_layers, load_model
from engine.weights.model_config import read_model_config
from engine.weights.resolve import resolve_model

__all__ = ["load_layers", "load_model", "read_model_config", "resolve_model"]

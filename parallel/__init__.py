"""Ranks, slices and collectives: parallelism that knows modules, names and shapes, but no model."""

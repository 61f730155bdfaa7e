"""Benchmarks: methods and peers on the same prompts, interleaved, with the papers' metrics."""

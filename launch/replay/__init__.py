"""Replay of recorded token streams through the engine's own policies, planner and verification."""

"""The rows of a table: methods, and variants of a method with some keys changed.

``--methods vanilla,copy_spec,switch_sd:copy_match_length=3:probe_threshold=0`` names three rows;
``open=switch_sd:probe_threshold=0`` gives a row a short name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.speculation import SpeculationConfig, parse_overrides, speculation

VANILLA = "vanilla"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row: what it is called and how it speculates."""

    label: str
    speculation: SpeculationConfig


def parse_variants(methods: str, overrides: str | None = None) -> tuple[Variant, ...]:
    """Rows in the order written, vanilla first: every table is relative to it.

    ``overrides`` is the JSON object of ``--speculative-config``; its keys hold for every method but
    vanilla, and a variant's own keys win.

    Raises:
        ValueError: an unknown method or key, an impossible value, or a row named twice.
    """
    shared = parse_overrides(overrides) if overrides is not None else {}
    if "method" in shared:
        raise ValueError("speculative-config key 'method' has no place here: --methods names them.")
    labels = [label.strip() for label in methods.split(",") if label.strip()]
    if not labels:
        raise ValueError("--methods must name at least one method, such as vanilla,switch_sd.")
    ordered = [VANILLA, *(label for label in labels if label != VANILLA)]
    variants = tuple(_variant(label, shared) for label in ordered)
    names = [variant.label for variant in variants]
    for name in names:
        if names.count(name) > 1 or labels.count(name) > 1:
            raise ValueError(f"--methods names {name!r} twice.")
    return variants


def shared_speculation(variants: tuple[Variant, ...]) -> SpeculationConfig:
    """What the engine is assembled with: the probe is loaded once, for all rows.

    Raises:
        ValueError: rows that name different probe files.
    """
    gated = [v.speculation for v in variants if v.speculation.reads_probe]
    if len({item.probe for item in gated}) > 1:
        raise ValueError("the rows of one run share one probe: give the key 'probe' the same file.")
    return gated[0] if gated else speculation(VANILLA)


def _variant(label: str, shared: dict[str, Any]) -> Variant:
    head, *pairs = label.split(":")
    name, separator, method = head.rpartition("=")
    keys = {} if method == VANILLA else dict(shared)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--methods: {label!r} must read METHOD:KEY=VALUE:KEY=VALUE.")
        keys[key] = _value(value)
    return Variant(label=name if separator else label, speculation=speculation(method, **keys))


def _value(text: str) -> Any:
    """A JSON value, or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text

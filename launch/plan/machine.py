"""Machines as files: every parameter of the step-time model with its unit and where it is from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

Origin = Literal["measured", "reported", "modelled"]
"""Timed by our own calibration; from a data sheet or somebody's table; our own assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A number of the model."""

    value: float
    unit: str
    origin: Origin
    source: str
    """Where it comes from, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceLine:
    """An all-reduce algorithm: a latency and a time per byte; the fastest line holds."""

    seconds: float
    seconds_per_byte: float


PARAMETERS = {
    "memory_bandwidth": "B/s",
    "memory_efficiency": "",
    "matmul_rate": "FLOP/s",
    "matmul_rate_8bit": "FLOP/s",
    "matmul_efficiency": "",
    "attention_efficiency": "",
    "overlap": "",
    "layer_gap": "s",
    "attention_launch": "s",
    "step_gap": "s",
    "memory_size": "B",
}
"""Every machine has these, with these units; the docstring of ``steptime`` says what they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of device."""

    name: str
    parameters: Mapping[str, Parameter]
    all_reduce: Mapping[int, tuple[AllReduceLine, ...]]
    """By the number of ranks; one rank needs none."""
    all_reduce_origin: Origin = "reported"

    def __getitem__(self, name: str) -> float:
        """A parameter's value."""
        return self.parameters[name].value

    def all_reduce_seconds(self, num_bytes: float, ranks: int) -> float:
        """Of one all-reduce; raises ``ValueError`` for a number of ranks that nobody timed."""
        if ranks == 1:
            return 0.0
        if ranks not in self.all_reduce:
            known = ", ".join(map(str, sorted(self.all_reduce))) or "none"
            raise ValueError(
                f"machine {self.name} has no all-reduce times for {ranks} ranks; it has them for "
                f"{known}"
            )
        return min(
            line.seconds + line.seconds_per_byte * num_bytes for line in self.all_reduce[ranks]
        )


def shipped_machines() -> tuple[str, ...]:
    """Names of the machines that come with the project."""
    folder = files("launch.plan") / "machines"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def load_machine(name: str) -> Machine:
    """A shipped machine by its name, or a file that calibration wrote.

    Raises:
        ValueError: an unknown name, or a file that is no machine; one sentence.
    """
    if name in shipped_machines():
        text = (files("launch.plan") / "machines" / f"{name}.json").read_text(encoding="utf-8")
    elif Path(name).is_file():
        text = Path(name).read_text(encoding="utf-8")
    else:
        raise ValueError(
            f"--machine must be one of {', '.join(shipped_machines())}, or a file that "
            f"python -m launch.plan calibrate wrote, not {name!r}."
        )
    try:
        return machine_from_json(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} is not a machine file: {error!r}.") from error


def machine_from_json(fields: Mapping[str, Any]) -> Machine:
    """Raises KeyError, TypeError or ValueError where something is missing or wrong."""
    parameters = {name: Parameter(**one) for name, one in fields["parameters"].items()}
    missing = [name for name in PARAMETERS if name not in parameters]
    if missing:
        raise ValueError(f"parameter {missing[0]!r} is missing")
    for name, one in parameters.items():
        if one.origin not in get_args(Origin) or one.value < 0:
            raise ValueError(f"parameter {name!r} has no known origin, or is negative")
    return Machine(
        name=fields["name"],
        parameters=parameters,
        all_reduce={
            int(ranks): tuple(AllReduceLine(**line) for line in lines)
            for ranks, lines in fields["all_reduce"].items()
        },
        all_reduce_origin=fields["all_reduce_origin"],
    )


def save_machine(machine: Machine, path: Path) -> None:
    """Write a machine file."""
    fields = {
        "name": machine.name,
        "parameters": {name: asdict(one) for name, one in machine.parameters.items()},
        "all_reduce": {
            str(ranks): [asdict(line) for line in lines]
            for ranks, lines in machine.all_reduce.items()
        },
        "all_reduce_origin": machine.all_reduce_origin,
    }
    path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")

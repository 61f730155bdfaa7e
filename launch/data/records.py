"""Random structured content: records as JSON, CSV, key-value files and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random

from launch.data.words import (
    ANIMALS,
    COLORS,
    COMPANIES,
    DEPARTMENTS,
    JOBS,
    MATERIALS,
    PLACES,
    PRODUCTS,
    WEEKDAYS,
    date_of,
    email_of,
    full_name,
    pick,
)

Record = Mapping[str, object]


def records(rng: Random, num_records: int) -> list[Record]:
    """Records of one random schema: all have the same keys in the same order."""
    schema = rng.choice(_SCHEMAS)
    rows = [schema(rng) for _ in range(num_records)]
    keys = list(rows[0])
    kept = set(rng.sample(keys, rng.randint(min(4, len(keys)), len(keys))))
    return [{key: row[key] for key in keys if key in kept} for row in rows]


def as_json(value: object, *, indent: int | None = 2) -> str:
    """JSON text."""
    return json.dumps(value, indent=indent)


def as_csv(rows: Sequence[Record]) -> str:
    """Comma-separated lines with a header."""
    lines = [",".join(rows[0])]
    lines += [",".join(str(value) for value in row.values()) for row in rows]
    return "\n".join(lines)


def as_markdown(rows: Sequence[Record]) -> str:
    """A pipe table."""
    header = "| " + " | ".join(rows[0]) + " |"
    rule = "|" + "---|" * len(rows[0])
    body = ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join([header, rule, *body])


def as_aligned(rows: Sequence[Record]) -> str:
    """A table in columns padded with spaces."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )
    return "\n".join(line.rstrip() for line in padded)


def config_file(rng: Random) -> str:
    """A flat ``key: value`` or ``key = value`` configuration of 6 to 11 entries."""
    separator = rng.choice((": ", " = ", "="))
    keys = rng.sample(sorted(_SETTINGS), rng.randint(6, 11))
    return "\n".join(f"{key}{separator}{_SETTINGS[key](rng)}" for key in keys)


def nested_document(rng: Random) -> dict[str, object]:
    """A nested JSON document: an order with its customer and items."""
    name = full_name(rng)
    items = [
        {"sku": f"{pick(rng, PRODUCTS)[:3].upper()}-{rng.randint(100, 999)}", **_product(rng)}
        for _ in range(rng.randint(1, 3))
    ]
    document: dict[str, object] = {
        "order_id": rng.randint(10_000, 99_999),
        "customer": {"name": name, "email": email_of(name), "city": pick(rng, PLACES)},
        "items": items,
        "paid": rng.random() < 0.5,
        "ship_on": date_of(rng, first_year=2021),
    }
    dropped = rng.choice(("order_id", "paid", "ship_on", None))
    return {key: value for key, value in document.items() if key != dropped}


def _person(rng: Random) -> dict[str, object]:
    name = full_name(rng)
    return {
        "id": rng.randint(100, 9_999),
        "name": name,
        "age": rng.randint(19, 74),
        "job": pick(rng, JOBS),
        "city": pick(rng, PLACES),
        "email": email_of(name),
    }


def _product(rng: Random) -> dict[str, object]:
    return {
        "product": pick(rng, PRODUCTS),
        "color": pick(rng, COLORS),
        "material": pick(rng, MATERIALS),
        "price": round(rng.uniform(3, 300), 2),
        "stock": rng.randint(0, 500),
    }


def _shift(rng: Random) -> dict[str, object]:
    start = rng.randint(6, 14)
    return {
        "day": pick(rng, WEEKDAYS),
        "employee": full_name(rng),
        "department": pick(rng, DEPARTMENTS),
        "start": f"{start:02d}:00",
        "end": f"{start + rng.randint(4, 8):02d}:30",
        "room": f"{rng.choice('ABCDE')}{rng.randint(101, 420)}",
    }


def _account(rng: Random) -> dict[str, object]:
    return {
        "company": pick(rng, COMPANIES),
        "contact": full_name(rng),
        "region": pick(rng, PLACES),
        "revenue": rng.randint(10_000, 990_000),
        "since": rng.randint(1989, 2024),
        "active": rng.choice(("yes", "no")),
    }


def _trip(rng: Random) -> dict[str, object]:
    return {
        "train": f"{rng.choice('RXQ')}{rng.randint(10, 99)}",
        "origin": pick(rng, PLACES),
        "destination": pick(rng, PLACES),
        "departs": f"{rng.randint(5, 22):02d}:{rng.randint(0, 59):02d}",
        "platform": rng.randint(1, 14),
        "minutes": rng.randint(12, 340),
    }


_SCHEMAS: tuple[Callable[[Random], dict[str, object]], ...] = (
    _person,
    _product,
    _shift,
    _account,
    _trip,
)

_SETTINGS: dict[str, Callable[[Random], object]] = {
    "server_port": lambda rng: rng.randint(1_024, 65_000),
    "log_level": lambda rng: rng.choice(("debug", "info", "warning", "error")),
    "max_connections": lambda rng: rng.randint(8, 2_048),
    "database_host": lambda rng: (
        f"db{rng.randint(1, 9)}.{pick(rng, PLACES).split()[0].lower()}.example.com"
    ),
    "database_user": lambda rng: full_name(rng).split()[1].lower(),
    "cache_directory": lambda rng: f"/var/cache/{pick(rng, ANIMALS)}",
    "retry_seconds": lambda rng: round(rng.uniform(0.5, 30), 1),
    "timeout": lambda rng: rng.randint(5, 300),
    "theme_color": lambda rng: f"#{rng.randrange(16**6):06x}",
    "backup_day": lambda rng: pick(rng, WEEKDAYS).lower(),
    "admin_email": lambda rng: email_of(full_name(rng)),
    "enable_metrics": lambda rng: rng.choice(("true", "false")),
    "worker_threads": lambda rng: rng.randint(1, 64),
    "region": lambda rng: pick(rng, PLACES).lower().replace(" ", "-"),
    "upload_limit": lambda rng: f"{rng.randint(1, 512)}MB",
}

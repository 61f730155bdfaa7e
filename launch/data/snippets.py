"""Random Python functions: a shape, identifiers and constants are drawn independently.

They are everyday bookkeeping routines of our own making, unlike any benchmark's tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from launch.data.words import words

_VERBS = words(
    "collect compute build filter merge count group format update check load select rank"
)
_NOUNS = words(
    "orders invoices readings tickets messages sensors players routes samples payments labels "
    "shelves visits parcels lessons recipes"
)
_FIELDS = words("price weight score amount length duration rating quantity distance cost")
_LOCALS = words("result total output selected summary collected found kept")
_KEYS = words("name code owner status region category label kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A function and the identifiers in it that may be renamed."""

    source: str
    name: str
    variables: tuple[str, ...]


def snippet(rng: Random) -> Snippet:
    """A function of 6 to 14 lines without a docstring."""
    noun, field, local = rng.choice(_NOUNS), rng.choice(_FIELDS), rng.choice(_LOCALS)
    name = f"{rng.choice(_VERBS)}_{noun}"
    shape = rng.choice(_SHAPES)
    values = {
        "name": name,
        "items": noun,
        "item": _singular(noun),
        "field": field,
        "local": local,
        "key": rng.choice(_KEYS),
        "limit": rng.choice(("limit", "threshold", "minimum", "cutoff")),
        "number": rng.choice((3, 5, 10, 12, 24, 50, 100, 250)),
        "factor": rng.choice((0.5, 0.9, 1.1, 1.25, 2.0, 0.75)),
    }
    return Snippet(
        source=shape.format(**values), name=name, variables=(noun, _singular(noun), local)
    )


def script(rng: Random) -> Snippet:
    """Two functions, the first one's identifiers counted."""
    first, second = snippet(rng), snippet(rng)
    return Snippet(
        source=f"{first.source}\n\n\n{second.source}", name=first.name, variables=first.variables
    )


def misspell(rng: Random, source: str, identifiers: tuple[str, ...]) -> str:
    """The source with one inner letter dropped from the last use of one identifier."""
    candidates = [word for word in identifiers if len(word) > 3 and source.count(word) > 1]
    word = rng.choice(candidates) if candidates else "return"
    cut = rng.randrange(1, len(word) - 1)
    head, _, tail = source.rpartition(word)
    return head + word[:cut] + word[cut + 1 :] + tail


def _singular(noun: str) -> str:
    return noun[:-3] + "f" if noun.endswith("lves") else noun.removesuffix("s")


_SHAPES = (
    """def {name}({items}, {limit}={number}):
    {local} = []
    for {item} in {items}:
        if {item}["{field}"] > {limit}:
            {local}.append({item}["{key}"])
    return {local}""",
    """def {name}({items}):
    {local} = 0
    for {item} in {items}:
        {local} += {item}.{field} * {factor}
    if {local} > {number}:
        {local} = {number}
    return {local}""",
    """def {name}({items}, {key}):
    {local} = {{}}
    for {item} in {items}:
        group = {item}.get({key}, "unknown")
        if group not in {local}:
            {local}[group] = []
        {local}[group].append({item})
    return {local}""",
    """def {name}(path, {limit}={number}):
    {local} = []
    with open(path) as handle:
        for line in handle:
            {key}, {field} = line.strip().split(",")
            if float({field}) >= {limit}:
                {local}.append(({key}, float({field})))
    {local}.sort(key=lambda pair: pair[1])
    return {local}""",
    """def {name}({items}, {field}s):
    if len({items}) != len({field}s):
        raise ValueError("expected one {field} for every {item}")
    {local} = dict(zip({items}, {field}s))
    for {item}, {field} in {local}.items():
        print(f"{{{item}}}: {{{field}}}")
    return {local}""",
    """class {item}Store:
    def __init__(self, {items}):
        self.{items} = list({items})
        self.{limit} = {number}

    def {name}(self, {key}):
        {local} = [{item} for {item} in self.{items} if {item}.{key} == {key}]
        return {local}[: self.{limit}]

    def add(self, {item}):
        self.{items}.append({item})
        return len(self.{items})""",
    """def {name}({items}):
    best = None
    {local} = {{"{field}": 0, "{key}": ""}}
    for index, {item} in enumerate({items}):
        if best is None or {item}["{field}"] > best["{field}"]:
            best = {item}
            {local}["{field}"] = index
            {local}["{key}"] = {item}["{key}"]
    return {local}""",
    """def {name}({items}, retries={number}):
    {local} = None
    while retries > 0 and {local} is None:
        try:
            {local} = fetch({items}, timeout={factor})
        except ConnectionError as error:
            retries -= 1
            log.warning("could not load {items}: %s", error)
    return {local}""",
)

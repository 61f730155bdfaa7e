"""From a body to what the engine is asked: sampling, stops, speculation, grammar."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from engine.grammar import ANY_JSON_OBJECT, json_grammar
from engine.records import Request
from engine.sampling import SamplingParams
from engine.speculation import SpeculationConfig, speculation
from engine.tokenizer import Tokenizer
from ray_app.openai_requests import GenerationBody, ResponseFormat, SpeculativeOptions
from ray_app.text_stream import TextOptions

_SEED_BITS = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model that answers, and what holds where a request is silent."""

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    created: int
    speculation: SpeculationConfig
    temperature: float = 1.0
    """OpenAI's default, or the model's own generation settings."""
    top_p: float = 1.0


def sampling_params(
    body: GenerationBody,
    model: ServedModel,
    *,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    grammar: str | None = None,
) -> SamplingParams:
    """Raises ``ValueError`` that names a field and what it may be."""
    given = {
        "temperature": model.temperature if body.temperature is None else body.temperature,
        "top_p": model.top_p if body.top_p is None else body.top_p,
        "top_k": None if body.top_k is None else max(body.top_k, 0) if body.top_k >= -1 else -2,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "seed": secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
    }
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        logit_bias=_logit_bias(body.logit_bias or {}),
        min_tokens=body.min_tokens,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        bad_words=_bad_words(body.bad_words or [], model.tokenizer),
        grammar=grammar,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def with_choice(params: SamplingParams, index: int) -> SamplingParams:
    """The ``index``-th of several choices draws with a seed of its own, as in vLLM."""
    seed = params.seed + index
    return replace(params, seed=seed - 2**64 if seed >= 2**63 else seed)


def text_options(body: GenerationBody) -> TextOptions:
    """How the answer's text is cut and shown."""
    return TextOptions(
        stop=body.stop_strings,
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        min_tokens=body.min_tokens,
    )


def request_speculation(
    options: SpeculativeOptions | None, base: SpeculationConfig
) -> SpeculationConfig | None:
    """How the request speculates, or None for the server's way.

    Raises:
        ValueError: an unknown method or drafter, or two that do not go together.
    """
    if options is None or options == SpeculativeOptions():
        return None
    if not options.enabled:
        return speculation("vanilla")
    wanted = options.model_dump(exclude={"enabled"}, exclude_none=True)
    if "method" not in wanted:
        return replace(base, **wanted)
    shared = {"probe": base.probe, "draft_min_probability": base.draft_min_probability}
    found = speculation(wanted.pop("method"), **{**shared, **wanted})
    same_drafter = found.drafter == base.drafter != "none"
    return replace(found, model=base.model) if same_drafter else found


def grammar_of(response_format: ResponseFormat | None) -> str | None:
    """What the answer's text must match."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.json_schema is None:
        return json_grammar(ANY_JSON_OBJECT)
    return json_grammar(response_format.json_schema.schema_)


def engine_request(
    request_id: str,
    prompt_ids: list[int],
    body: GenerationBody,
    params: SamplingParams,
    model: ServedModel,
    *,
    max_tokens: int | None,
) -> Request:
    """What the engine is asked for one choice."""
    return Request(
        request_id=request_id,
        prompt_ids=tuple(prompt_ids),
        max_tokens=model.max_model_len if max_tokens is None else max_tokens,
        ignore_eos=body.ignore_eos,
        sampling=params,
        speculation=request_speculation(body.speculative, model.speculation),
    )


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    found = []
    for key, value in biases.items():
        if not key.isdecimal():
            raise ValueError(f"logit_bias: {key!r} is no token id")
        if not -100 <= value <= 100:
            raise ValueError(f"logit_bias of token {key} is {value:g}; it must be -100 to 100")
        found.append((int(key), value))
    return tuple(found)


def _bad_words(words: list[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it may be tokenized: at the start of a text, and behind a space."""
    if not all(words):
        raise ValueError("bad_words must not be empty texts")
    spellings = (tokenizer.encode_word(text) for word in words for text in (word, " " + word))
    return tuple(dict.fromkeys(tuple(ids) for ids in spellings if ids))

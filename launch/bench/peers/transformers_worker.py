"""transformers as a peer: plain greedy decoding and prompt look-up with ten tokens."""

from __future__ import annotations

import argparse
from typing import Any

from launch.bench.peers.protocol import Answer, Clock, serve

PROMPT_LOOKUP_TOKENS = 10


def load(flags: argparse.Namespace) -> tuple[Answer, dict[str, str]]:
    """The model in this process."""
    import torch  # noqa: PLC0415 - a missing peer is a sentence, not a traceback
    import transformers  # noqa: PLC0415

    torch.set_num_threads(flags.threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        flags.model, dtype=getattr(torch, flags.dtype)
    )
    model.eval()
    passes = PassCounter()
    model.register_forward_pre_hook(passes.count)
    options: dict[str, Any] = {"do_sample": False}
    if flags.mode == "prompt_lookup":
        options["prompt_lookup_num_tokens"] = PROMPT_LOOKUP_TOKENS

    def answer(prompt_ids: list[int], max_tokens: int) -> dict[str, Any]:
        inputs = torch.tensor([prompt_ids])
        streamer, passes.total = TokenClock(), 0
        with torch.inference_mode():
            output = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=max_tokens,
                streamer=streamer,
                **options,
            )
        streamer.clock.stop()
        token_ids = output[0, len(prompt_ids) :].tolist()
        return streamer.clock.reply(token_ids, num_passes=passes.total - 1)

    return answer, {"transformers": transformers.__version__, "torch": torch.__version__}


class PassCounter:
    """Counts forward passes, prefill's included."""

    def __init__(self) -> None:
        self.total = 0

    def count(self, *_: object) -> None:
        """The model is called."""
        self.total += 1


class TokenClock:
    """A streamer that only notes when the first token after the prompt arrives."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._seen_prompt = False

    def put(self, _: object) -> None:
        """The prompt comes first, then tokens."""
        if self._seen_prompt:
            self.clock.token()
        self._seen_prompt = True

    def end(self) -> None:
        """Nothing is buffered."""


if __name__ == "__main__":
    serve(load)

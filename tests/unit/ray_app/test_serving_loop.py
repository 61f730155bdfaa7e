"""The coordinator's loop with a fake engine and a scripted link."""

from __future__ import annotations

import pytest

from engine.records import Request
from ray_app.coordinator_link import LinkClosedError
from ray_app.messages import Accepted, Add, Cancel, DrafterFound, Message, Refused, Stop, Tokens
from ray_app.serving_loop import ServingLoop
from ray_app.watchdog import Watchdog
from tests.support.fake_engine import MAX_PROMPT, EchoEngine


class ScriptedLink:
    """Hands out one list of messages per call and keeps what was sent."""

    def __init__(self, *script: list[Message]) -> None:
        self.script = list(script)
        self.sent: list[Message] = []
        self.timeouts: list[float] = []

    def receive(self, timeout: float) -> list[Message]:
        self.timeouts.append(timeout)
        if not self.script:
            raise LinkClosedError("script over")
        return self.script.pop(0)

    def send(self, message: Message) -> None:
        self.sent.append(message)


def _request(name: str, max_tokens: int = 2, length: int = 2) -> Add:
    prompt = tuple(range(length))
    return Add(Request(request_id=name, prompt_ids=prompt, max_tokens=max_tokens))


def _run(link: ScriptedLink, engine: EchoEngine, idle_seconds: float = 0.0) -> list[DrafterFound]:
    found: list[DrafterFound] = []
    ServingLoop(
        engine,
        link,
        idle_seconds=idle_seconds,
        on_drafter=found.append,
        watchdog=Watchdog(60.0),
    ).run()
    return found


def test_a_drafter_is_handed_on_and_disturbs_nothing() -> None:
    drafter = DrafterFound(host="h", port=5, token="t")
    link = ScriptedLink([_request("a")], [drafter], [Stop()])
    assert _run(link, EchoEngine()) == [drafter]
    assert sum(isinstance(message, Tokens) for message in link.sent) == 2


def test_tokens_of_all_requests_of_a_step_are_one_message() -> None:
    link = ScriptedLink([_request("a"), _request("b")], [], [Stop()])
    _run(link, EchoEngine())
    assert link.sent[:2] == [Accepted("a"), Accepted("b")]
    batches = [message.events for message in link.sent if isinstance(message, Tokens)]
    assert [[event.request_id for event in batch] for batch in batches] == [["a", "b"]] * 2
    assert [event.finish_reason for event in batches[1]] == ["length", "length"]


def test_it_waits_only_when_nothing_runs() -> None:
    link = ScriptedLink([_request("a")], [], [Stop()])
    _run(link, EchoEngine(), idle_seconds=7.0)
    assert link.timeouts == [7.0, 0.0, 7.0]


def test_a_refusal_is_the_engines_sentence_and_other_requests_go_on() -> None:
    link = ScriptedLink([_request("long", length=MAX_PROMPT + 1), _request("a")], [Stop()])
    _run(link, EchoEngine())
    assert link.sent[0] == Refused("long", f"the prompt has {MAX_PROMPT + 1} tokens; max 64")
    assert link.sent[1] == Accepted("a")


def test_a_cancelled_request_gets_no_more_tokens() -> None:
    engine, link = EchoEngine(), ScriptedLink([_request("a", 9)], [Cancel("a")], [Stop()])
    _run(link, engine)
    assert engine.calls[0] == "cancel a"
    assert sum(isinstance(message, Tokens) for message in link.sent) == 1


def test_silence_is_a_sign_of_life_to_the_other_ranks() -> None:
    engine, link = EchoEngine(), ScriptedLink([], [], [Stop()])
    _run(link, engine)
    assert engine.calls == ["idle", "idle", "stop"]


def test_refusals_alone_do_not_keep_the_other_ranks_waiting() -> None:
    """The bug would be: idle only when no message came, so refusals starve the other ranks."""
    engine = EchoEngine()
    _run(ScriptedLink([_request("x", length=MAX_PROMPT + 1)], [Stop()]), engine)
    assert "idle" in engine.calls


def test_a_vanished_server_stops_every_rank() -> None:
    engine = EchoEngine()
    _run(ScriptedLink(), engine)
    assert engine.calls == ["stop"]


def test_after_an_engine_error_no_collective_is_tried() -> None:
    engine = EchoEngine()
    engine.fails_at_step = 1
    with pytest.raises(RuntimeError, match="caught fire"):
        _run(ScriptedLink([_request("a")]), engine)
    assert "stop" not in engine.calls


def test_only_the_servers_messages_are_obeyed() -> None:
    with pytest.raises(ValueError, match="may not send Accepted"):
        _run(ScriptedLink([Accepted("a")]), EchoEngine())

"""The rows named on the command line."""

from __future__ import annotations

import pytest

from engine.speculation import speculation
from launch.bench.methods import parse_variants, shared_speculation


def test_vanilla_is_always_there_and_first() -> None:
    assert [v.label for v in parse_variants("switch_sd,vanilla")] == ["vanilla", "switch_sd"]
    assert [v.label for v in parse_variants("copy_spec")] == ["vanilla", "copy_spec"]


def test_a_variant_changes_keys_of_its_row_only() -> None:
    rows = parse_variants("switch_sd,switch_sd:copy_match_length=3:probe_threshold=0.5")
    assert rows[1].speculation == speculation("switch_sd")
    expected = speculation("switch_sd", copy_match_length=3, probe_threshold=0.5)
    assert rows[2].speculation == expected


def test_overrides_hold_for_all_but_vanilla_and_a_variants_own_key_wins() -> None:
    rows = parse_variants("copy_spec,copy_spec:copy_match_length=4", '{"copy_match_length": 2}')
    assert [row.speculation.copy_match_length for row in rows] == [5, 2, 4]


@pytest.mark.parametrize(
    ("methods", "overrides", "sentence"),
    [
        ("magic", None, "'method' must be one of vanilla"),
        ("switch_sd,switch_sd", None, "names 'switch_sd' twice"),
        (" , ", None, "at least one method"),
        ("switch_sd:copy_match_length", None, "must read METHOD:KEY=VALUE"),
        ("switch_sd:kappa=3", None, "no key 'kappa'"),
        ("switch_sd:row_budget=most", None, "'row_budget' must be"),
        ("switch_sd", '{"method": "vanilla"}', "--methods names them"),
        ("switch_sd", "[1]", "must be a JSON object"),
    ],
)
def test_mistakes_are_one_sentence(methods: str, overrides: str | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_variants(methods, overrides)


def test_engine_is_assembled_with_the_probe_that_a_row_needs() -> None:
    assert shared_speculation(parse_variants("copy_spec")) == speculation("vanilla")
    gated = parse_variants("switch_sd:probe_threshold=0,switch_sd")
    assert shared_speculation(gated) == speculation("switch_sd")
    with pytest.raises(ValueError, match="share one probe"):
        shared_speculation(parse_variants("switch_sd:probe=a,switch_sd:probe=b"))

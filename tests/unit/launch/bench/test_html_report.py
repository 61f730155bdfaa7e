"""``report.html`` and block efficiency: what a person sees."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from launch.bench.block_efficiency import BUCKET_TOKENS, by_position, write_block_efficiency
from launch.bench.html_report import write_html
from launch.bench.plots import write_plots
from tests.unit.launch.bench.runs import COPY, VANILLA, record
from tests.unit.launch.bench.test_tables import cells


def test_page_names_the_winner_the_losers_and_exactness(tmp_path: Path) -> None:
    found = cells(VANILLA, COPY)
    write_plots(found, tmp_path)
    write_html(found, tmp_path, title="Table <1>")
    page = (tmp_path / "report.html").read_text()
    assert "Table &lt;1&gt;" in page
    assert "Fastest: copy_spec:x=1 on w (2.50 times plain decoding)" in page
    assert '<tr class="best"><td>copy_spec:x=1</td>' in page
    assert "0 are wrong" in page
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page.replace("http-equiv", ""), "nothing is loaded from elsewhere"


def test_a_method_that_loses_is_said_in_words(tmp_path: Path) -> None:
    slow = [{**cell, "speedup": {"macro": 0.5, "micro": 0.5}} for cell in cells(VANILLA, COPY)[1:]]
    write_html([*cells(VANILLA, COPY)[:1], *slow], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Slower than plain decoding: copy_spec:x=1." in page
    assert 'class="loses"' in page


def test_an_empty_directory_says_so(tmp_path: Path) -> None:
    write_html([], tmp_path)
    assert "Nothing has been measured yet." in (tmp_path / "report.html").read_text()


def test_passes_are_put_where_they_begin(tmp_path: Path) -> None:
    names = {"session": "s", "label": "m", "request": "r"}
    records = [record(source="prefill"), record(output=BUCKET_TOKENS - 1), record(output=3)]
    steps = [{**asdict(one), **names} for one in (*records, record(output=1))]
    assert by_position(steps) == {"m": [(0, BUCKET_TOKENS - 1.0), (BUCKET_TOKENS, 2.0)]}
    write_block_efficiency(steps, tmp_path)
    assert (tmp_path / "block_efficiency.png").is_file()

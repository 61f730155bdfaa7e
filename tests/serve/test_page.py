"""The page in headless Chromium, where one is installed: an answer streams in, coloured."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.tokenizer import load_tokenizer
from tests.support.fake_backend import TEXT, FakeBackend
from tests.support.http_server import serving
from tests.support.tiny import LLAMA2, write_checkpoint

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.slow


def test_an_answer_streams_in_with_its_sources(tmp_path: Path) -> None:
    backend = FakeBackend(load_tokenizer(write_checkpoint(tmp_path, LLAMA2)))
    with serving(backend) as url, sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch()
        except sync_api.Error:
            pytest.skip("no Chromium for playwright: playwright install chromium")
        page = browser.new_page()
        page.goto(url)
        page.fill("#prompt", "hello")
        page.click("#send")
        page.wait_for_function(f"document.querySelector('#answer').textContent === {TEXT!r}")
        assert page.locator("#answer span.verifier").count() > 0
        assert int(page.inner_text("#tokens")) == len(TEXT.encode()) + 1
        assert page.inner_text("#error") == ""
        backend.is_full = True
        page.click("#send")
        page.wait_for_function("document.querySelector('#error').textContent.includes('no more')")
        browser.close()

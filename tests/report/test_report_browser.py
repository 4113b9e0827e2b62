"""The report in a real browser: it renders, it asks nobody for anything, it stays inside a narrow window."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedleak.report import build_report

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser here: looked for {', '.join(BROWSERS)}")
    return found


def run_browser(browser: str, profile: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
    quiet += ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
    command = [browser, *quiet, f"--user-data-dir={profile}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


@pytest.mark.parametrize(("run", "count"), [("faces_run", "10 of 10"), ("mixed_run", "4 of 4")])
def test_the_report_renders_without_a_complaint(
    browser: str, run: str, count: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page = build_report(request.getfixturevalue(run), {})
    done = run_browser(browser, tmp_path / "profile", page, "--enable-logging=stderr", "--v=0", "--dump-dom")
    text = html.unescape(done.stdout).replace("\N{NO-BREAK SPACE}", " ")
    assert f"With no defense, dlm_plus recovered {count} faces" in text
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]  # also blocked requests
    assert complaints == []


PROBE = """<!DOCTYPE html><meta charset="utf-8"><iframe src="{page}" style="width:{width}px;height:900px"></iframe>
<script>onload = () => {{
  const seen = document.querySelector("iframe").contentWindow;
  const asked = seen.performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:"));
  const inner = seen.document.documentElement;
  const images = [...seen.document.images];
  document.title = JSON.stringify({{
    asked: asked.map(e => e.name), scroll: inner.scrollWidth, client: inner.clientWidth,
    images: images.length, broken: images.filter(i => !i.naturalWidth).length,
    small: images.filter(i => i.getBoundingClientRect().width < 96).length,
  }});
}};</script>"""


@pytest.mark.parametrize("run", ["faces_run", "mixed_run"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_fits_its_window_and_asks_nobody(
    browser: str, run: str, tmp_path: Path, width: int, request: pytest.FixtureRequest
) -> None:
    page = build_report(request.getfixturevalue(run), {})
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(page=page.as_uri(), width=width), encoding="utf-8")
    options = ("--allow-file-access-from-files", "--virtual-time-budget=10000", "--dump-dom", "--window-size=1400,1000")
    done = run_browser(browser, tmp_path / "profile", probe, *options)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    seen = json.loads(html.unescape(title.group(1)))
    assert seen["asked"] == []
    assert seen["scroll"] <= seen["client"]  # only tables scroll sideways, never the page
    assert seen["images"] > 100
    assert (seen["broken"], seen["small"]) == (0, 0)

"""Find out what a browser would load for a page, and what it shows when the scripts of the page have run."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest


class _Sources(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.tags = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.found += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def loaded_by(page: str, *, has_script: bool = False) -> list[str]:
    """Return everything that a browser would load. Assert that the page runs no code, and that its styles load nothing.

    `has_script`: scripts in the page are allowed. What a script loads by `src` is returned in either case.
    """
    sources = _Sources()
    sources.feed(page)
    assert not sources.tags & ({"link", "iframe", "object"} | (set() if has_script else {"script"}))
    assert "url(" not in page and "@import" not in page
    return sources.found


def dom_of(page: Path, profile: Path) -> str:
    """Return the HTML of a page after its scripts have run. Skip the test if there is no Chromium.

    `profile`: an empty folder for the browser.
    """
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("chromium is not installed")
    return subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         "--virtual-time-budget=5000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip

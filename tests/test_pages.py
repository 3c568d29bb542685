"""The pages: tables that the code makes, links that lead somewhere, commits that exist."""

import re
import subprocess
from pathlib import Path

import pytest

from ps_cluster.reporting import run_metrics
from ps_cluster.run import log_events

PROJECT = Path(__file__).parents[1]
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
HEADING = re.compile(r"^#+ (.+)$", re.M)
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_has_every_metric_and_every_line_that_asks_for_action():
    page = (PROJECT / "docs" / "operations.md").read_text()
    for table in (run_metrics.table(), log_events.table()):
        assert table in page, f"put this into docs/operations.md:\n{table}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_within_the_project_leads_to_a_file_and_a_heading(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_commit_that_a_page_names_exists():
    def git(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the whole history is not here")
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"\bcommits?\s+([0-9a-f]{7})\b", text))  # may be digits alone, as some numbers are
    named |= set(re.findall(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7}\b", text))
    assert len(named) > 10
    assert not [word for word in sorted(named) if git("cat-file", "-e", f"{word}^{{commit}}").returncode]

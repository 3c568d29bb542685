"""The pages: tables that the code makes, links that lead somewhere, commits that exist, a practice that trains."""

import json
import re
import subprocess
from pathlib import Path

import portpicker
import pytest

from ps_cluster.report import metrics
from ps_cluster.runs import logs
from tests.helpers.real_cluster import PROJECT, pasted

OPERATIONS = (PROJECT / "docs" / "operations.md").read_text()
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
HEADING = re.compile(r"^#+ (.+)$", re.M)
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_page_has_every_metric_and_every_line_that_asks_for_action():
    for table in (metrics.table(), logs.table()):
        assert table in OPERATIONS, f"put this into docs/operations.md:\n{table}"


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


def section(page: str, title: str) -> str:
    text = (PROJECT / "docs" / page).read_text()
    return text.partition(f"# {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def test_who_wants_to_kill_a_process_reads_where_its_pid_is_named():
    for text in (
        section("operations.md", "When something dies"),
        (PROJECT / "README.md").read_text().partition("## Start")[0],
    ):
        assert re.search(r"cluster show (RUN_DIR|runs/)", text)


@pytest.mark.cluster
def test_the_practice_on_one_machine_trains_as_the_page_says(tmp_path):
    (commands,) = re.findall(r"^```\n(.*?)^```", section("clusters.md", "Practise on one machine"), re.M | re.S)
    ports = {port: str(portpicker.pick_unused_port()) for port in re.findall(r":(\d{4})", commands)}
    assert len(ports) == 4
    pasted(re.sub("|".join(ports), lambda found: ports[found[0]], commands), tmp_path)
    result = json.loads((tmp_path / "practice" / "metrics" / "training.json").read_text())
    assert result["updates"]["scheduled"] == result["updates"]["applied"] == 40

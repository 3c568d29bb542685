"""Check the pages: tables agree with the code, links and commits exist, and the practice cluster is a valid one."""

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from ps_cluster.config.datasets import DATASETS
from ps_cluster.config.modes import MODES
from ps_cluster.config.networks import NETWORKS
from ps_cluster.config.tasks import Task
from ps_cluster.data.plain_pickles import MOST_OPERATIONS
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.launch.cluster_files import from_file
from ps_cluster.launch.stages import RunLimits
from ps_cluster.report import metrics
from ps_cluster.runs import logs
from ps_cluster.runs.result_rows import TrainingOutcome
from tests.helpers.command_lines import assert_sound
from tests.helpers.real_cluster import PROJECT

ARCHITECTURE, TOOLS, TROUBLESHOOTING = (
    (PROJECT / "docs" / f"{name}.md").read_text() for name in ("architecture", "tools", "troubleshooting")
)
README = (PROJECT / "README.md").read_text()
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
HEADING = re.compile(r"^#+ (.+)$", re.M)
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = HEADING.findall(CODE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_metrics_that_the_page_names_exist():
    types = {metric.name: metric.kind(metric.name, metric.help_text).type for metric in metrics.METRICS}
    known = {f"{name}{'_total' * (kind == 'counter')}" for name, kind in types.items()}
    named = set(re.findall(r"`(ps_cluster_\w+)`", TOOLS + TROUBLESHOOTING))
    assert named and named - known == set()


def test_the_page_says_what_to_do_about_every_warning_and_error():
    events = [event for event in vars(logs).values() if isinstance(event, logs.LogEvent) and event.level != "info"]
    table = TROUBLESHOOTING.partition("| event | level | what has happened | what to do |\n")[2].partition("\n\n")[0]
    assert [line.split(" | ")[:2] for line in table.splitlines()[1:]] == [[f"| `{e.name}`", e.level] for e in events]
    assert all(len(line.split(" | ")) == 4 for line in table.splitlines()[1:])


def test_the_pages_have_the_limits_of_the_code():
    assert f"if training has not begun | After {RunLimits().startup_s:.0f} s" in TROUBLESHOOTING
    assert f"a pickle may have {MOST_OPERATIONS:,} operations" in " ".join(ARCHITECTURE.split())


def test_the_page_of_tools_has_every_outcome_of_a_run():
    tools = (PROJECT / "docs" / "tools.md").read_text()
    line = tools.partition("how the run ended: ")[2].partition(".")[0]
    assert set(re.findall("`([^`]+)`", line)) == {*get_args(TrainingOutcome), "failed"}


def test_the_default_settings_list_every_name_that_can_be_chosen():
    comments = (CONFIG_FOLDER / "default.yaml").read_text()
    for registry in (DATASETS, NETWORKS, MODES):
        names = [one.name for one in registry if getattr(one, "offered", True)]
        assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", comments)] == []


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
    named = set(re.findall(r"\bcommits?\s+([0-9a-f]{7,12})\b", text))  # may be digits alone, as some numbers are
    named |= set(re.findall(r"\b(?=[a-f]*\d)(?=\d*[a-f])(?:[0-9a-f]{7}|[0-9a-f]{12})\b", text))
    assert len(named) > 10
    assert not [word for word in sorted(named) if git("cat-file", "-e", f"{word}^{{commit}}").returncode]


def section(page: str, title: str) -> str:
    text = (PROJECT / "docs" / page).read_text()
    return text.partition(f"# {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def test_the_practice_on_one_machine_is_a_cluster_of_tasks_that_agree(tmp_path, monkeypatch):
    """tests/end_to_end/test_several_machines.py trains with such tasks."""
    (page,) = re.findall(r"^```\n(.*?)^```", section("clusters.md", "Practise on one machine"), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    Path("practice.yaml").write_text(page.partition("<<'END'\n")[2].partition("\nEND\n")[0])
    command = page.partition("python cli.py ")[2].partition("}")[0].replace("\\\n", " ")
    started = re.findall(r"^task (\w+) (\d)", page, re.M)
    assert len(started) == 4
    for kind, index in started:
        words = command.replace("$1", kind).replace("$2", index).split()
        assert_sound(words)
        topology, own = from_file(Path("practice.yaml"), Task(kind, int(index)), pytest.fail)
        assert own in topology.tasks and len(topology.tasks) == len(started)

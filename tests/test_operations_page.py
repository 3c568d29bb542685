"""docs/operations.md: the tables that the code makes, where pids are named, and the practice on one machine, as pasted."""

import json
import re

import portpicker
import pytest

from ps_cluster.reporting import run_metrics
from ps_cluster.run import log_events
from tests.helpers.real_cluster import PROJECT, pasted

PAGE = (PROJECT / "docs" / "operations.md").read_text()


def section(title):
    return PAGE.partition(f"# {title}\n")[2].partition("\n## ")[0].partition("\n### ")[0]


def test_the_page_has_every_metric_and_every_line_that_asks_for_action():
    for table in (run_metrics.table(), log_events.table()):
        assert table in PAGE, f"put this into docs/operations.md:\n{table}"


def test_who_wants_to_kill_a_process_reads_where_its_pid_is_named():
    for text in (section("When something dies"), (PROJECT / "README.md").read_text().partition("## Start")[0]):
        assert re.search(r"cluster show (RUN_DIR|runs/)", text)


@pytest.mark.cluster
def test_the_practice_on_one_machine_trains_as_the_page_says(tmp_path):
    (commands,) = re.findall(r"^```\n(.*?)^```", section("Practise on one machine"), re.M | re.S)
    ports = {port: str(portpicker.pick_unused_port()) for port in re.findall(r":(\d{4})", commands)}
    assert len(ports) == 4
    pasted(re.sub("|".join(ports), lambda found: ports[found[0]], commands), tmp_path)
    result = json.loads((tmp_path / "practice" / "metrics" / "training.json").read_text())
    assert result["updates"]["scheduled"] == result["updates"]["applied"] == 40

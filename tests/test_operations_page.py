"""The tables of docs/operations.md that the code makes."""

from pathlib import Path

from ps_cluster.reporting import run_metrics
from ps_cluster.run import log_events

PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()


def test_the_page_has_every_metric_and_every_line_that_asks_for_action():
    for table in (run_metrics.table(), log_events.table()):
        assert table in PAGE, f"put this into docs/operations.md:\n{table}"

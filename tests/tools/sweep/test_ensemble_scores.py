import json

import pytest

from ps_cluster.tools.sweep.ensemble_scores import Scores, ScoreTable


@pytest.mark.parametrize(
    ("field", "off", "mean", "best"),
    [
        ("accuracy", (0.03, 0.05, 0.01), ["60.00%", "0.9000", "4.00%"], ["80.00%", "0.7000", "1.00%"]),
        ("error", (None, None, None), ["0.6", "0.9000"], ["0.8", "0.7000"]),
    ],
)
def test_the_table_has_each_member_their_mean_and_the_ensemble(field, off, mean, best, tmp_path):
    one, other, ensemble = (Scores(*each) for each in zip((0.5, 0.7, 0.8), (1.0, 0.8, 0.7), off))
    table = ScoreTable(("0-mlp", "1-mlp"), (one, other), ensemble, field)
    assert [row[0] for row in table.rows] == ["0-mlp", "1-mlp", "mean of the members", "the ensemble"]
    assert table.rows[2:] == [["mean of the members", *mean], ["the ensemble", *best]]
    table.write(tmp_path / "scores", {"schema": 1}, [{"seed": 0}, {"seed": 1}])
    written = json.loads((tmp_path / "scores").read_text())
    scores = {f"test_{field}": 0.7, "test_loss": 0.8, "calibration_error": off[1]}
    assert written["schema"] == 1 and written["members"][1] == {"seed": 1, **scores}
    assert written["mean"][f"test_{field}"] == pytest.approx(0.6) and written["ensemble"]["test_loss"] == 0.7

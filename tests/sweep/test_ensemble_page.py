from ps_cluster.tools.sweep.ensemble import PAGE, read_ensemble, write_ensemble_page
from ps_cluster.tools.sweep.joining import Scores, ScoreTable
from tests.helpers.data import pack_images, random_images


def test_the_page_has_each_member_their_mean_and_the_ensemble_and_names_the_best_member(tmp_path):
    dataset = pack_images(tmp_path / "set", "synthetic", tuple("abcdefghij"), (*random_images(40), *random_images(20)))
    ensemble = read_ensemble(None, {"data.dataset": "synthetic"}, models=("mlp",), seeds=2, split="shards")
    for field, best in (("accuracy", "70.00%"), ("error", "0.5")):
        scores = (Scores(0.5, 1.0, 0.03), Scores(0.7, 0.8, 0.05), Scores(0.8, 0.7, 0.01))
        table = ScoreTable(("0-mlp", "1-mlp"), scores, field)
        write_ensemble_page(tmp_path, ensemble, table, dataset)
        page = (tmp_path / PAGE).read_text()
        mean = "60.00%" if field == "accuracy" else "0.6"
        assert f"its members have {mean} on average, the best {best}." in page and "Generated images" in page
    assert [row[0] for row in table.rows] == ["0-mlp", "1-mlp", "mean of the members", "the ensemble"]
    assert table.rows[2] == ["mean of the members", "0.6", "0.9000", "4.00%"]

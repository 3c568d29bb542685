"""Data of users' own, trained on a real cluster without any code."""

import numpy as np
import pytest

from tests.helpers.own_data import draw
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import finish, start_run, summary_of

FEW = ("--workers", 2, "--steps", 200, "--set", "training.batch_size_per_worker=32")


@pytest.mark.cluster
def test_a_table_with_missing_values_and_names_is_learned(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{size:.3f},{rng.choice(['Rome', 'Oslo', ''])},{row}" for row, size in enumerate(rng.normal(80, 20, 1000))
    ]
    priced = [f"{line},{1000 * float(line.split(',')[0]) + 30_000 * ('Rome' in line):.1f}" for line in lines]
    (tmp_path / "houses.csv").write_text("size,city,id,price\n" + "\n".join(priced))
    chosen = (
        "--dataset",
        tmp_path / "houses.csv",
        "--target",
        "price",
        "--set",
        "data.leave_out=[id]",
        "--model",
        "mlp",
    )
    finish(start_run(tmp_path / "run", *chosen, *FEW, "--set", "optimizer.learning_rate=0.01"))
    assert_none_left(tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["dataset"] == f"table:{tmp_path}/houses.csv" and summary["proof"]["holds"]
    assert summary["evaluation"]["test_error"] < 4_000, "the standard deviation is 24,000"


@pytest.mark.cluster
def test_a_folder_of_pictures_is_learned(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(60):
        name, colour = (("red", (180, 90, 90)), ("blue", (90, 90, 180)))[number % 2]
        size = (int(rng.integers(20, 40)), int(rng.integers(20, 40)))
        draw(tmp_path / "pets" / "train" / name / f"{number}.jpg", size, tuple(np.add(colour, rng.integers(-40, 40))))
    chosen = ("--dataset", tmp_path / "pets", "--image-size", 16, "--model", "mlp")
    finish(start_run(tmp_path / "run", *chosen, *FEW))
    assert_none_left(tmp_path / "run")
    assert summary_of(tmp_path / "run")["evaluation"]["best_test_accuracy"] > 0.8

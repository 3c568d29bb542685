"""What TensorBoard will show of a run, read back with TensorBoard's own reader."""

import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ps_cluster.config import Changed
from ps_cluster.run.run_dir import RunDir
from ps_cluster.training.tensorboard import EvaluationWriter, TrainingWriter


def read(folder) -> tuple[EventAccumulator, dict[str, list[tuple[int, float]]]]:
    import tensorflow as tf

    events = EventAccumulator(str(folder))
    events.Reload()
    scalars = {
        tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if tag not in ("staleness", "settings")
    }
    return events, scalars


def test_rows_of_progress_are_curves_over_the_updates_applied_and_unknown_values_are_left_out(tmp_path):
    writer = TrainingWriter(RunDir(tmp_path))
    row = {"loss": 2.0, "accuracy": 0.5, "learning_rate": 0.1, "staleness_mean": None, "examples_per_second": 100.0}
    writer.write(row | {"applied": 10, "phase": "training"})
    writer.write(row | {"applied": 20, "loss": None, "staleness_mean": 1.5})
    _, scalars = read(tmp_path / "tensorboard" / "training")  # readable before the writer is closed
    assert scalars.pop("staleness_mean") == [(20, 1.5)]
    assert scalars.pop("loss") == [(10, 2.0)]
    assert scalars.pop("learning_rate") == [(10, pytest.approx(0.1)), (20, pytest.approx(0.1))]
    assert scalars == {"accuracy": [(10, 0.5), (20, 0.5)], "examples_per_second": [(10, 100.0), (20, 100.0)]}
    writer.close()


def test_staleness_of_all_updates_is_a_histogram(tmp_path):
    import tensorflow as tf

    writer = TrainingWriter(RunDir(tmp_path))
    writer.write_staleness({}, step=83)
    writer.write_staleness({"0": 3, "1": 80}, step=83)
    writer.close()
    (event,) = read(tmp_path / "tensorboard" / "training")[0].Tensors("staleness")
    assert event.step == 83
    assert tf.make_ndarray(event.tensor_proto)[:, 2].tolist() == [3.0, 80.0]


def test_scores_are_curves_over_the_step_of_the_checkpoint(tmp_path):
    writer = EvaluationWriter(RunDir(tmp_path))
    writer.write({"step": 390, "test_accuracy": 0.75, "test_loss": None})
    writer.close()
    assert read(tmp_path / "tensorboard" / "evaluation")[1] == {"test_accuracy": [(390, 0.75)]}


def test_settings_that_differ_are_a_table_of_which_no_cell_breaks(tmp_path):
    import tensorflow as tf
    from tensorboard.plugin_util import markdown_to_safe_html

    writer = TrainingWriter(RunDir(tmp_path))
    writer.write_settings({"training.epochs": Changed(2.0, 5.0), "data.data_dir": Changed("/a|b*c*", None)})
    writer.close()
    (event,) = read(tmp_path / "tensorboard" / "training")[0].Tensors("settings")
    html = markdown_to_safe_html(tf.make_ndarray(event.tensor_proto).item().decode())
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == [
        "training.epochs", "<code>2.0</code>", "<code>5.0</code>",
        "data.data_dir", "<code>/a|b*c*</code>", "<code>null</code>",
    ]  # fmt: skip

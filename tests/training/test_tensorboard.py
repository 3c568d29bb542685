"""What TensorBoard will show of a run, read back with TensorBoard's own reader."""

import re

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from ps_cluster.config import ChangedSetting, build_config
from ps_cluster.files.json_rows import read_rows
from ps_cluster.runs.result_rows import EvaluationRow, ProgressRow, WorkerRow, with_work
from ps_cluster.runs.run_dir import RunDir
from ps_cluster.training.reporter import Reporter
from ps_cluster.training.result import training_result
from ps_cluster.training.run_progress import RunProgress
from ps_cluster.training.tensorboard_files import EvaluationWriter, TrainingWriter
from tests.helpers.rows import progress_row


def read(folder) -> tuple[EventAccumulator, dict[str, list[tuple[int, float]]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    scalars = {
        tag: [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if tag not in ("staleness", "settings", "weights", "predictions")
    }
    return events, scalars


def test_rows_of_progress_are_curves_over_the_updates_applied_and_unknown_values_are_left_out(tmp_path):
    writer = TrainingWriter(RunDir(tmp_path))
    known = {"accuracy": 0.5, "learning_rate": 0.1, "examples_per_second": 100.0}
    writer.write(progress_row(10, loss=2.0, **known))
    writer.write(progress_row(20, staleness_mean=1.5, **known))
    _, scalars = read(tmp_path / "tensorboard" / "training")  # readable before the writer is closed
    assert scalars.pop("staleness_mean") == [(20, 1.5)]
    assert scalars.pop("loss") == [(10, 2.0)]
    assert scalars.pop("learning_rate") == [(10, pytest.approx(0.1)), (20, pytest.approx(0.1))]
    assert scalars == {"accuracy": [(10, 0.5), (20, 0.5)], "examples_per_second": [(10, 100.0), (20, 100.0)]}
    writer.close()


def test_staleness_of_all_updates_is_a_histogram(tmp_path):
    writer = TrainingWriter(RunDir(tmp_path))
    writer.write_staleness("staleness", {}, step=83)
    writer.write_staleness("staleness", {0: 3, 1: 80}, step=83)
    writer.close()
    (event,) = read(tmp_path / "tensorboard" / "training")[0].Tensors("staleness")
    assert event.step == 83
    assert tf.make_ndarray(event.tensor_proto)[:, 2].tolist() == [3.0, 80.0]


def test_wide_range_of_staleness_shares_bars_and_no_update_is_missing(tmp_path):
    writer = TrainingWriter(RunDir(tmp_path))
    writer.write_staleness("staleness", {0: 1, 99: 2, 50: 4}, step=1)
    writer.close()
    (event,) = read(tmp_path / "tensorboard" / "training")[0].Tensors("staleness")
    bars = tf.make_ndarray(event.tensor_proto)
    assert len(bars) <= 30 and bars[:, 2].sum() == 7 and (bars[0, 0], bars[-1, 1] > 99) == (0, True)


def test_values_are_a_histogram_without_those_that_are_not_finite(tmp_path):
    writer = EvaluationWriter(RunDir(tmp_path))
    writer.write_values("weights", np.array([1.0, np.nan, 2.0, np.inf], np.float32), step=5)
    writer.write_values("nothing", np.array([np.nan]), step=5)
    writer.write(EvaluationRow(step=5))
    writer.close()
    events, _ = read(tmp_path / "tensorboard" / "evaluation")
    assert events.Tags()["tensors"] == ["weights"]
    (event,) = events.Tensors("weights")
    assert tf.make_ndarray(event.tensor_proto)[:, 2].sum() == 2


def test_runs_below_one_folder_stand_beside_each_other_in_hparams_with_settings_and_scores(tmp_path):
    for name, rate in (("slow", 0.1), ("quick", 0.5)):
        writer = EvaluationWriter(RunDir(tmp_path / name))
        settings = {"optimizer.learning_rate": rate, "training.steps": None, "mode.name": "async"}
        writer.write_hyper_parameters(name, settings)
        for step, accuracy in ((1, 0.2), (2, rate)):
            writer.write(EvaluationRow(step=step, test_accuracy=accuracy))
        writer.close()
    found = {group.name: group for group in session_groups(tmp_path)}
    assert set(found) == {"slow", "quick"}
    for name, rate in (("slow", 0.1), ("quick", 0.5)):
        settings = found[name].hparams
        assert settings["optimizer.learning_rate"].number_value == rate
        assert settings["training.steps"].string_value == "null" and settings["mode.name"].string_value == "async"
        (session,) = found[name].sessions
        (score,) = session.metric_values
        assert (session.name, score.name.tag) == (f"{name}/tensorboard/evaluation", "test_accuracy")
        assert score.value == pytest.approx(rate)


def test_run_without_an_evaluator_has_its_settings_in_hparams_beside_the_scalars_of_the_training(tmp_path):
    values = {"training.steps": 7, "data.dataset": "synthetic"}
    for name, has_evaluator in (("without", False), ("with", True)):
        config = build_config(None, values | {"cluster.evaluator": has_evaluator})
        reporter = Reporter(config, RunDir(tmp_path / name), RunProgress(config, train_examples=1000))
        (tmp_path / name / "metrics").mkdir(parents=True)
        reporter.row("training")
    (found,) = session_groups(tmp_path)
    assert found.name == "without" and found.hparams["training.steps"].number_value == 7


def test_rows_of_progress_do_not_grow_with_the_workers(tmp_path):
    class Crowd(Reporter):
        def take_row(self, phase):
            workers = [WorkerRow(index=index, pid=9000 + index, updates=7) for index in range(1000)]
            return super().take_row(phase).model_copy(update={"workers": workers, "dispatches": [9000] * 1000})

    config, run_dir = build_config(None, {"training.steps": 7, "data.dataset": "synthetic"}), RunDir(tmp_path)
    run_dir.metrics.mkdir()
    reporter = Crowd(config, run_dir, RunProgress(config, train_examples=1000))
    for _ in range(5):
        reporter.row("connecting")
    reporter.saving()
    assert run_dir.progress.stat().st_size < 6 * 2000
    rows = with_work(run_dir.work, list(read_rows(run_dir.progress, ProgressRow)))
    assert len(rows) == 6 and len(rows[0].workers) == len(rows[5].dispatches) == 1000


def session_groups(folder):
    """Return the rows of TensorBoard's tab HParams."""
    runs = EventMultiplexer()
    runs.AddRunsFromDirectory(str(folder))
    runs.Reload()
    context = backend_context.Context(TBContext(data_provider=MultiplexerDataProvider(runs, str(folder))))
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=10, allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING, api_pb2.STATUS_SUCCESS]
    )
    handler = list_session_groups.Handler(RequestContext(), context, "", request)
    return handler.run().session_groups


def test_settings_that_differ_are_a_table_of_which_no_cell_breaks(tmp_path):
    writer = TrainingWriter(RunDir(tmp_path))
    writer.write_settings(
        {"training.epochs": ChangedSetting(2.0, 5.0), "data.data_dir": ChangedSetting("/a|b*c*", None)}
    )
    writer.close()
    (event,) = read(tmp_path / "tensorboard" / "training")[0].Tensors("settings")
    html = markdown_to_safe_html(tf.make_ndarray(event.tensor_proto).item().decode())
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert cells == [
        "training.epochs", "<code>2.0</code>", "<code>5.0</code>",
        "data.data_dir", "<code>/a|b*c*</code>", "<code>null</code>",
    ]  # fmt: skip


def test_curves_that_can_not_be_written_at_the_end_keep_no_run_from_ending(tmp_path, monkeypatch):
    run_dir = RunDir.create(tmp_path / "run")
    config = build_config()
    progress = RunProgress(config, 100)
    reporter = Reporter(config, run_dir, progress)
    reporter.row("training")

    def refuse(*_):
        raise tf.errors.UnknownError(None, None, "events can't be flushed")

    monkeypatch.setattr(TrainingWriter, "write_staleness", refuse)
    reporter.end(training_result(config, progress, "stopped"))
    assert run_dir.training_result.is_file()

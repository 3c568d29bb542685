"""The evaluator on real networks and small packed data: right numbers, the best model, and when it ends."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from ps_cluster.cli.main import main
from ps_cluster.clock import AwakeClock
from ps_cluster.config import build_config, load_config
from ps_cluster.config.networks import NETWORKS
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.evaluation import evaluator
from ps_cluster.evaluation.evaluator import evaluate
from ps_cluster.evaluation.scorer import Scorer
from ps_cluster.files.json_rows import read_rows
from ps_cluster.files.locks import InUse, Lock
from ps_cluster.files.writing import write_json, write_whole
from ps_cluster.models.build import build
from ps_cluster.models.flat import flatten
from ps_cluster.runs import checkpoints, scores
from ps_cluster.runs.checkpoints import Checkpoint, CheckpointMeta
from ps_cluster.runs.predictions import load_predictions
from ps_cluster.runs.result_rows import CheckpointScores, EvaluationRow
from ps_cluster.runs.run_dir import RunDir
from tests.bad_files.conftest import NoWriter
from tests.helpers.bad_input import assert_one_line
from tests.helpers.data import pack_images
from tests.helpers.fake_time import FakeTime
from tests.helpers.saved_models import modules_in
from tests.helpers.users import SOMEBODY

pytestmark = pytest.mark.slow

CLASSES = tuple(f"class {letter}" for letter in "abcdefghij")
PROJECT = Path(__file__).parents[2]
BEST_FILES = ["best.json", "checkpoint.safetensors", "model.keras"]
TEST_EXAMPLES = 263  # five batches and a remainder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(0)

    def part(count):
        # There are twice as many of the classes 0, 1 and 2 as of the others, and none of 9.
        labels = rng.permutation(np.arange(count) % 12 % 9).astype(np.uint8)
        return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), labels

    folder = tmp_path_factory.mktemp("packed") / "set"
    return pack_images(folder, "synthetic", CLASSES, (*part(24), *part(TEST_EXAMPLES)))


@pytest.fixture
def run_dir(tmp_path, dataset):
    run_dir = RunDir.create(tmp_path / "run")
    overrides = {"model.name": "tutorial_cnn", "model.precision": "float32", "data.dataset": "synthetic"}
    write_whole(run_dir.config, build_config(None, overrides).to_yaml())
    write_json(run_dir.dataset, {"name": "synthetic", "kind": "synthetic", "directory": str(dataset.directory)})
    return run_dir


@pytest.fixture(scope="module")
def scorers():
    """Settings of a run → its scorer. To build one takes a second, and most runs here have the same."""
    return {}


@pytest.fixture(autouse=True)
def quick(request, monkeypatch, scorers):
    """The evaluator looks often, and each network is built once."""

    def built(config, packed):
        wanted = config.to_yaml(), packed.directory, packed.validation_examples
        return scorers.get(wanted) or scorers.setdefault(wanted, Scorer(config, packed))

    monkeypatch.setattr(evaluator, "Scorer", built)
    monkeypatch.setattr(evaluator, "POLL_S", 0.05)
    if "tensorboard" not in request.fixturenames:
        monkeypatch.setattr(evaluator, "EvaluationWriter", NoWriter)
        monkeypatch.setattr(evaluator, "Insight", NoWriter)


@pytest.fixture
def tensorboard():
    """TensorBoard's files are written, which takes as long as a score."""


@pytest.fixture(scope="module")
def network(dataset):
    """The network, its flat length, and a random setting of its weights."""
    model = build(NETWORKS["tutorial_cnn"].Settings(name="tutorial_cnn", precision="float32"), dataset.spec, seed=1)
    return model, flatten(model.trainable_variables)


def always(label: int, network) -> np.ndarray:
    """Weights of a network whose score is 1 for `label` and 0 for the others, whatever it sees."""
    weights = np.zeros_like(network[1])
    weights[-len(CLASSES) + label] = 1.0
    return weights


def save(run_dir: RunDir, step: int, weights: np.ndarray, keep: int = 9) -> None:
    arrays = {"weights": weights, "statistics": np.zeros(0, np.float32), "slots": np.zeros(5)}
    meta = CheckpointMeta(dataset_kind="synthetic", train_seconds=step / 10, examples=step * 128)
    checkpoints.save(run_dir.checkpoints, Checkpoint(step, arrays, meta), keep)


def change_settings(run_dir: RunDir, values: dict) -> None:
    write_whole(run_dir.config, load_config(run_dir.config).with_values(values).to_yaml())


class Lines(list[str]):
    """The lines that an evaluator has printed."""

    def __call__(self, line) -> None:
        self.append(str(line))


@pytest.fixture
def lines():
    return Lines()


def share(dataset, label: int) -> float:
    return float(np.mean(dataset.target("test") == label))


def test_score_is_that_of_the_whole_test_set_counted_by_hand(run_dir, dataset, network):
    save(run_dir, 390, always(3, network))
    (row,) = evaluate(run_dir.root, once=True, notify=print)
    assert row.test_accuracy == share(dataset, 3)
    assert row.test_loss == pytest.approx(np.log(9 + np.e) - share(dataset, 3), rel=1e-5)
    assert (row.step, row.train_seconds, row.examples, row.best) == (390, 39.0, 49920, True)
    assert list(read_rows(run_dir.evaluation, EvaluationRow)) == [row]


def test_the_best_model_is_chosen_on_images_held_out_where_there_are_any(run_dir, dataset, network, lines):
    change_settings(run_dir, {"evaluation.validation_examples": 6})
    held_out = np.bincount(dataset.target("train")[-6:], minlength=10) / 6
    pairs = ((a, b) for a in range(10) for b in range(10))  # the test images would choose the other of the two
    pair = next((a, b) for a, b in pairs if held_out[a] > held_out[b] and share(dataset, a) < share(dataset, b))
    rows = []
    for step, label in enumerate(pair, start=1):
        save(run_dir, step, always(label, network))
        rows += evaluate(run_dir.root, once=True, notify=lines)
    assert [row.validation_accuracy for row in rows] == [held_out[label] for label in pair]
    assert [row.test_accuracy for row in rows] == [share(dataset, label) for label in pair]
    for row in rows:  # a constant network: its loss follows from its share of right answers
        assert row.validation_loss == pytest.approx(np.log(9 + np.e) - row.validation_accuracy, rel=1e-5)
    assert [row.best for row in rows] == [True, False]
    said = f"step 1: validation accuracy {held_out[pair[0]]:.2%}, loss {rows[0].validation_loss:.4f}, log_loss "
    assert lines[0].startswith(said) and " (6 GENERATED images held out), best so far · test accuracy " in lines[0]
    for row in rows:  # of the same examples as the loss, which is the log loss here
        assert row.validation_metrics["log_loss"] == pytest.approx(row.validation_loss, rel=1e-4)
        assert row.metrics["log_loss"] == pytest.approx(row.test_loss, rel=1e-4)
    assert json.loads((run_dir.best / "best.json").read_text())["step"] == 1


def test_tensorboard_has_test_pictures_with_what_the_network_takes_them_for(run_dir, dataset, network):
    scorer = Scorer(load_config(run_dir.config), dataset)
    save(run_dir, 7, always(3, network))
    scorer.score(checkpoints.load(checkpoints.path_of(run_dir.checkpoints, 7)))
    answers = scorer.answers(24)
    assert len(answers) == 24 and {answer.predicted for answer in answers} == {"class d"}
    ids = [place * TEST_EXAMPLES // 24 for place in range(24)]
    assert [answer.truth for answer in answers] == [CLASSES[dataset.target("test")[i]] for i in ids]
    assert all((answer.picture == dataset.inputs("test")["image"][i]).all() for answer, i in zip(answers, ids))
    assert all(answer.right == (answer.truth == "class d") for answer in answers)
    assert sum(scorer.variables.values()) == len(network[1])


def test_score_of_random_weights_agrees_with_keras_which_loads_the_best_model(run_dir, dataset, network):
    _, weights = network
    save(run_dir, 1, weights)
    (row,) = evaluate(run_dir.checkpoints, once=True, notify=print)
    assert modules_in(run_dir.best_model) == {"keras"}
    images, model = np.asarray(dataset.inputs("test")["image"]), keras.models.load_model(run_dir.best_model)
    raw, floats = (np.asarray(model(pixels), np.float64) for pixels in (images, images.astype(np.float32)))
    assert np.array_equal(raw, floats)
    found, labels = raw, np.asarray(dataset.target("test"))
    assert row.test_accuracy == pytest.approx(np.mean(found.argmax(1) == labels), abs=1.5 / TEST_EXAMPLES)
    losses = np.log(np.exp(found).sum(1)) - found[np.arange(len(labels)), labels]
    assert row.test_loss == pytest.approx(losses.mean(), rel=1e-3)

    kept = load_predictions(run_dir.predictions)
    assert (kept.step, kept.objective, kept.unit, kept.classes) == (1, "classification", "images", CLASSES)
    powers = np.exp(found - found.max(1, keepdims=True))
    probabilities = powers / powers.sum(1, keepdims=True)
    assert kept.arrays["target"].tolist() == labels.tolist()
    assert np.mean(kept.arrays["predicted"] == probabilities.argmax(1)) > 1 - 1.5 / TEST_EXAMPLES
    assert kept.arrays["confidence"] == pytest.approx(probabilities.max(1), abs=1e-4)
    assert kept.arrays["of_target"] == pytest.approx(probabilities[np.arange(len(labels)), labels], abs=1e-4)


def test_weights_that_are_not_numbers_know_nothing(run_dir, network):
    save(run_dir, 5, np.full_like(network[1], np.nan))
    (row,) = evaluate(run_dir.root, once=True, notify=print)
    assert (row.test_accuracy, row.test_loss) == (0.0, None)
    kept = load_predictions(run_dir.predictions).arrays
    assert set(kept["predicted"].tolist()) == {-1} and not kept["confidence"].any() and not kept["of_target"].any()
    assert "NaN" not in run_dir.evaluation.read_text()


def test_every_checkpoint_is_scored_until_the_end_and_only_the_newest_when_behind(run_dir, network, tensorboard, lines):
    save(run_dir, 10, always(4, network))

    def notify(line):
        """Training goes on while the evaluator scores."""
        lines(line)
        if "step 10:" in lines[-1]:
            for step in (20, 30, 40):
                save(run_dir, step, always(1, network))
        if "step 40:" in lines[-1]:
            save(run_dir, 50, always(5, network))
            checkpoints.mark_ended(run_dir.checkpoints, last_step=50, outcome="completed")

    rows = evaluate(run_dir.root, notify=notify)
    assert [(row.step, row.best) for row in rows] == [(10, True), (40, True), (50, False)]
    assert (
        lines.pop(1) == "the checkpoints of steps 20, 30 will not be scored, because the checkpoint of step 40 is newer"
    )
    assert all("GENERATED" in line for line in lines)
    best = json.loads((run_dir.best / "best.json").read_text())
    assert best == {name: getattr(rows[1], name) for name in CheckpointScores.model_fields}
    assert checkpoints.load(run_dir.best / "checkpoint.safetensors").step == 40
    assert sorted(path.name for path in run_dir.best.iterdir()) == BEST_FILES
    assert list(run_dir.tensorboard.glob("evaluation/events.*"))


def test_every_checkpoint_is_scored_in_order_once_training_has_ended_where_that_is_asked_for(run_dir, network):
    change_settings(run_dir, {"evaluation.after_training": True})
    for step, label in ((10, 4), (20, 1), (30, 5)):
        save(run_dir, step, always(label, network))
    with pytest.raises(UserError, match="nothing new has appeared in .* for 0.1 s"):
        evaluate(run_dir.root, notify=print, patience_s=0.1)
    assert not run_dir.evaluation.exists(), "training may still want the processors"
    checkpoints.mark_ended(run_dir.checkpoints, last_step=30, outcome="completed")
    rows = evaluate(run_dir.root, notify=print)
    assert [(row.step, row.best) for row in rows] == [(10, True), (20, True), (30, False)]


def test_every_checkpoint_of_whole_epochs_is_scored_in_order_while_training_goes_on(run_dir, network, lines):
    change_settings(run_dir, {"checkpoints.every_epochs": 1.0})
    save(run_dir, 10, always(4, network))

    def notify(line):
        lines(line)
        if "step 10:" in lines[-1]:
            for step in (20, 30, 40):
                save(run_dir, step, always(1, network))
            checkpoints.mark_ended(run_dir.checkpoints, last_step=40, outcome="completed")

    assert [row.step for row in evaluate(run_dir.root, notify=notify)] == [10, 20, 30, 40]
    assert not any("not scored" in line for line in lines)


def test_evaluator_started_again_scores_no_step_twice_and_remembers_the_best(run_dir, network, lines):
    save(run_dir, 10, always(1, network))
    evaluate(run_dir.root, once=True, notify=print)
    save(run_dir, 20, always(8, network))
    checkpoints.mark_ended(run_dir.checkpoints, last_step=20, outcome="stopped")
    assert [(row.step, row.best) for row in evaluate(run_dir.root, notify=print)] == [(20, False)]
    assert evaluate(run_dir.root, notify=lines) == []
    assert "scored already" in lines[0]
    assert [row.step for row in read_rows(run_dir.evaluation, EvaluationRow)] == [10, 20]


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_what_is_scored_is_known_of_a_run_that_comes_while_it_is_awaited(run_dir, network, tmp_path, name, lines):
    save(run_dir, 10, always(1, network))
    evaluate(run_dir.root, once=True, notify=print)
    checkpoints.mark_ended(run_dir.checkpoints, last_step=10, outcome="completed")
    place = tmp_path / "place"

    def notify(line):
        lines(line)
        if lines[-1].startswith("waiting for a checkpoint"):
            run_dir.root.rename(place)

    assert evaluate(place / name, notify=notify) == []
    assert len(lines) == 2 and "scored already" in lines[1]
    assert [row.step for row in read_rows(RunDir(place).evaluation, EvaluationRow)] == [10]


def test_what_a_killed_evaluator_left_in_best_goes_away(run_dir, network):
    run_dir.best.mkdir()
    for name in (".model.99.keras", ".checkpoint.safetensors.99.tmp"):
        (run_dir.best / name).touch()
    save(run_dir, 10, always(1, network))
    evaluate(run_dir.root, once=True, notify=print)
    assert sorted(path.name for path in run_dir.best.iterdir()) == BEST_FILES


def test_a_damaged_checkpoint_is_skipped_and_reported(run_dir, network, lines):
    save(run_dir, 10, always(3, network))
    checkpoints.path_of(run_dir.checkpoints, 20).write_bytes(b"PK half")
    checkpoints.mark_ended(run_dir.checkpoints, last_step=20, outcome="completed")
    with pytest.raises(RunFailed, match="^the last checkpoint, of step 20, is not scored: .*damaged"):
        evaluate(run_dir.root, notify=lines)
    assert "passed over" in lines[0] and "step-000000020" in lines[0]
    assert [row.step for row in read_rows(run_dir.evaluation, EvaluationRow)] == [10], "the newest that can be read"


def test_the_checkpoints_that_once_leaves_out_are_named(run_dir, network, lines):
    for step in (10, 20, 30):
        save(run_dir, step, always(3, network))
    assert [row.step for row in evaluate(run_dir.root, once=True, notify=lines)] == [30]
    assert lines[0].startswith("the checkpoints of steps 10, 20 will not be scored") and "step 30: test" in lines[1]


def dangling_link(path):
    path.symlink_to("nowhere")


def link_to_itself(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize(("odd", "once"), [(dangling_link, True), (link_to_itself, False), (Path.mkdir, False)])
def test_last_checkpoint_that_can_not_be_read_is_given_up_after_some_attempts_and_the_exit_code_says_so(
    run_dir, network, odd, once
):
    save(run_dir, 10, always(3, network))
    odd(checkpoints.path_of(run_dir.checkpoints, 20))
    checkpoints.mark_ended(run_dir.checkpoints, last_step=20, outcome="completed")
    with pytest.raises(RunFailed, match="^the last checkpoint, of step 20, is not scored: .*020-term-000000.safe"):
        evaluate(run_dir.root, once=once, notify=print)
    assert [row.step for row in read_rows(run_dir.evaluation, EvaluationRow)] == [10]


@pytest.mark.parametrize("odd", [dangling_link, Path.mkdir])
def test_last_checkpoint_that_is_refused_once_is_read_at_another_attempt(run_dir, network, odd, monkeypatch):
    monkeypatch.setattr(evaluator, "POLL_S", 0.3)
    path = checkpoints.path_of(run_dir.checkpoints, 20)
    odd(path)
    checkpoints.mark_ended(run_dir.checkpoints, last_step=20, outcome="completed")

    def mend():
        path.unlink() if path.is_symlink() else path.rmdir()
        save(run_dir, 20, always(3, network))

    timer = threading.Timer(0.1, mend)
    timer.start()
    assert [row.step for row in evaluate(run_dir.root, notify=print)] == [20]
    timer.join()


def test_checkpoint_that_goes_away_while_it_is_awaited_holds_nobody_up(run_dir, network):
    save(run_dir, 10, always(3, network))
    path = checkpoints.path_of(run_dir.checkpoints, 20)
    dangling_link(path)

    def end():
        checkpoints.mark_ended(run_dir.checkpoints, last_step=10, outcome="stopped")
        path.unlink()

    timer = threading.Timer(0.1, end)
    timer.start()
    assert [row.step for row in evaluate(run_dir.root, notify=print)] == [10]
    timer.join()


def test_what_is_awaited_is_said_before_tensorflow_is_loaded_and_the_wait_is_bounded(tmp_path):
    command = [sys.executable, "cli.py", "evaluate", "--checkpoint-dir", tmp_path / "missing", "--wait-seconds", "1.5"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=PROJECT, text=True, **pipes) as process:
        said = process.stdout.readline()
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        _, errors = process.communicate(timeout=30)
    assert "python" in loaded and "libtensorflow" not in loaded
    assert said.startswith("waiting for a checkpoint: checkpoint directory '") and "does not exist" in said
    assert "--wait-seconds 1.5" in said
    assert process.returncode == 2 and errors.endswith("does not exist after 1.5 s of waiting\n")


def test_waiting_and_not_waiting_at_once_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["evaluate", "--checkpoint-dir", str(tmp_path), "--once", "--wait-seconds", "3"])
    assert_one_line(done.exit_code, done.stderr, ["--wait-seconds: --once does not wait"])


def test_the_time_in_which_the_evaluator_itself_is_stopped_is_no_silence(run_dir, network, monkeypatch):
    """It is stopped in its third sleep for longer than it may wait. A checkpoint comes only after three more looks."""
    machine, sleeps = FakeTime(), []

    def sleep(seconds):
        sleeps.append(seconds)
        machine.sleep(90 if len(sleeps) == 3 else seconds)
        if len(sleeps) == 6:
            save(run_dir, 10, always(3, network))
            checkpoints.mark_ended(run_dir.checkpoints, last_step=10, outcome="completed")

    monkeypatch.setattr(evaluator, "AwakeClock", partial(AwakeClock, machine.clock))
    monkeypatch.setattr(evaluator.time, "sleep", sleep)
    assert [row.step for row in evaluate(run_dir.root, patience_s=3, notify=print)] == [10]


@pytest.fixture(params=["another evaluator", "another user's run", "metrics", "best", "tensorboard"])
def why_not(request, run_dir, tmp_path, monkeypatch):
    """A reason for which the scores of a run may not be recorded: its line. The last three are links of another user."""
    if request.param == "another evaluator":
        with run_dir.evaluation.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield "another evaluator records the scores of this run"
    elif request.param == "another user's run":
        monkeypatch.setattr(scores.untrusted, "is_foreign", lambda path: path == run_dir.root)
        yield "it belongs to another user)"
    elif os.geteuid():
        pytest.skip("only root can give a link to somebody else")
    else:
        theirs, link = tmp_path / "theirs", run_dir.root / request.param
        theirs.mkdir()
        if link.is_dir():
            shutil.rmtree(link)
        link.symlink_to(theirs)
        os.lchown(link, SOMEBODY, SOMEBODY)
        yield f"'{link}', a link that another user (uid {SOMEBODY}) made"
        assert not list(theirs.iterdir())


def test_an_evaluator_that_may_not_record_only_prints(run_dir, network, why_not, lines):
    save(run_dir, 10, always(3, network))
    assert [row.step for row in evaluate(run_dir.root, once=True, notify=lines)] == [10]
    assert "test accuracy" in lines[0] and f"{why_not}" in lines[1] and "only prints" in lines[1]
    assert not run_dir.evaluation.exists() and not run_dir.best_model.exists()


def test_launcher_and_evaluator_write_the_summary_in_turn(run_dir, network, monkeypatch):
    """Else one could put what it read before the other wrote over what that one wrote."""

    def refresh(place, notify):
        with pytest.raises(InUse):
            Lock(place.summary_lock, "the summary")
        refreshed.append(place)

    refreshed = []
    monkeypatch.setattr(evaluator, "refresh_evaluation", refresh)
    write_json(run_dir.summary, {"schema": 1, "outcome": "completed", "evaluation": None})
    save(run_dir, 10, always(3, network))
    evaluate(run_dir.root, once=True, notify=print)
    assert refreshed == [run_dir]


def test_evaluation_by_hand_completes_the_summary(run_dir, network):
    write_json(run_dir.summary, {"schema": 1, "outcome": "completed"})
    save(run_dir, 10, always(3, network))
    (row,) = evaluate(run_dir.root, once=True, notify=print)
    summary = json.loads(run_dir.summary.read_text())
    assert summary["outcome"] == "completed"
    assert summary["evaluation"]["test_accuracy"] == summary["evaluation"]["best_test_accuracy"] == row.test_accuracy


def test_copied_checkpoints_are_scored_with_the_configuration_they_carry(run_dir, dataset, network, tmp_path):
    copy = tmp_path / "copy"
    meta = CheckpointMeta(config=load_config(run_dir.config).model_dump(mode="json"))
    arrays = {"weights": always(3, network), "statistics": np.zeros(0, np.float32)}
    checkpoints.save(copy, Checkpoint(7, arrays, meta), keep=1)
    write_json(copy / "dataset.json", {"directory": str(dataset.directory)})
    assert evaluate(copy, once=True, notify=print)[0].test_accuracy == share(dataset, 3)
    assert len(list(read_rows(copy / "metrics" / "evaluation.jsonl", EvaluationRow))) == 1


def test_checkpoint_of_another_network_is_refused_in_a_line(run_dir, network):
    save(run_dir, 10, network[1][:-1])
    with pytest.raises(UserError, match=r"^checkpoint of step 10 belongs to another network: .*weights.*$"):
        evaluate(run_dir.root, once=True, notify=print)


@pytest.mark.parametrize("once", [True, False])
def test_directory_of_other_things_is_refused_at_once(tmp_path, once):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(UserError, match="other things, such as 'photo.jpg'"):
        evaluate(tmp_path, once=once, notify=print)
    with pytest.raises(UserError, match="is a file"):
        evaluate(tmp_path / "photo.jpg", once=once, notify=print)


def test_nothing_to_score_is_a_line_for_the_user(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        evaluate(tmp_path / "missing", once=True, notify=print)
    with pytest.raises(UserError, match="holds no checkpoint"):
        evaluate(tmp_path, once=True, notify=print)
    checkpoints.path_of(tmp_path, 3).write_bytes(b"")
    with pytest.raises(UserError, match="no checkpoint that can be read"):
        evaluate(tmp_path, once=True, notify=lambda line: None)


@pytest.mark.parametrize("steps", [[], [10]])
def test_a_training_that_falls_silent_is_an_error(tmp_path, run_dir, network, steps):
    for step in steps:
        save(run_dir, step, always(3, network))
    told = "training has not ended, but" if steps else "after 0.2 s of waiting"
    for directory in (run_dir.root, *([] if steps else [tmp_path / "missing"])):
        with pytest.raises(UserError, match=told):
            evaluate(directory, patience_s=0.2, notify=print)
    assert [row.step for row in read_rows(run_dir.evaluation, EvaluationRow)] == steps


def test_training_that_ended_without_a_checkpoint_is_an_error(run_dir):
    checkpoints.mark_ended(run_dir.checkpoints, last_step=0, outcome="stopped")
    with pytest.raises(RunFailed, match="the last checkpoint, of step 0, is not scored: it is not there"):
        evaluate(run_dir.root, notify=print)


def test_the_last_checkpoint_is_scored_over_six_views_where_that_is_asked_for(run_dir, network):
    change_settings(run_dir, {"evaluation.augment_last": True})
    save(run_dir, 10, network[1])
    save(run_dir, 20, always(3, network))
    checkpoints.mark_ended(run_dir.checkpoints, last_step=20, outcome="completed")
    plain, both = evaluate(run_dir.root, notify=print)
    assert plain.augmented_test_accuracy is None
    assert both.augmented_test_accuracy == both.test_accuracy, "these weights know one class in every view"
    assert [row.step for row in read_rows(run_dir.evaluation, EvaluationRow)] == [20, 20]
    assert evaluate(run_dir.root, notify=print) == [], "an evaluator started again has nothing left to score"
    save(run_dir, 30, network[1])
    (row,) = evaluate(run_dir.root, once=True, notify=print)
    assert 0 < row.augmented_test_accuracy != row.test_accuracy

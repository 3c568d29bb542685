"""Tasks with one mistake in them that a proof has to find, and a run of such tasks.

python -m tests.helpers.mutated_task MISTAKE RUN_DIR     (the launcher; what it starts has more arguments)
"""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf

from ps_cluster.cluster import task
from ps_cluster.cluster.launcher import run_local
from ps_cluster.cluster.start import complete_config, resolve_data
from ps_cluster.config import build_config
from ps_cluster.reporting.progress import make_view
from ps_cluster.run_dir import RunDir
from ps_cluster.training import async_trainer
from ps_cluster.training.slice import APPLIED, Slice
from ps_cluster.training.waiting import after

STEPS, STEP = 120, 50  # of the run; the one that the mistake is made with
SETTINGS = {
    "data.dataset": "synthetic", "model.name": "tutorial_cnn", "model.precision": "float32", "training.steps": STEPS,
    "training.batch_size_per_worker": 8, "cluster.evaluator": False, "cluster.workers": 2, "cluster.parameter_servers": 2,
}  # fmt: skip


def applies_twice() -> None:
    apply = Slice.update

    def update(self, *gradient):
        with tf.control_dependencies([apply(self, *gradient)]):
            return apply(self, *gradient)

    Slice.update = update


def changes_the_weights_twice() -> None:
    rule = async_trainer.ParameterStore.__init__

    def init(self, *args, **kwargs):
        rule(self, *args, **kwargs)
        for part in self.slices:
            apply = part._rule.apply

            def twice(*gradient, apply=apply):
                with tf.control_dependencies([apply(*gradient)]):
                    return apply(*gradient)

            part._rule.apply = twice

    async_trainer.ParameterStore.__init__ = init


def applies_without_a_row() -> None:
    record = Slice._record

    def none_of_one(self, push, *known):
        return tf.cond(push.step == STEP, lambda: 0, lambda: after([record(self, push, *known)], 0)).op

    Slice._record = none_of_one


def writes_a_row_without_applying() -> None:
    apply = Slice._apply

    def not_one(self, push):
        def row_alone():
            version = self._version.read_value()
            return after([self._record(push, version, version - push.version)], APPLIED)

        return tf.cond(push.step == STEP, row_alone, lambda: apply(self, push))

    Slice._apply = not_one


def forgets_a_step() -> None:
    schedule = async_trainer._Chief._schedule

    def all_but_one(self, function, what):
        schedule(self, function, what[what != STEP])

    async_trainer._Chief._schedule = all_but_one


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        applies_twice,
        changes_the_weights_twice,
        applies_without_a_row,
        writes_a_row_without_applying,
        forgets_a_step,
    )
}


def run(mistake: str, root: Path) -> int:
    view, run_dir = make_view(), RunDir.create(root)
    dataset = resolve_data("synthetic", None, notify=view.notice)
    config = complete_config(build_config(overrides=SETTINGS), dataset)
    argv = (sys.executable, "-m", "tests.helpers.mutated_task", mistake)
    return run_local(config, run_dir, dataset, resume=False, view=view, task_argv=argv)


if __name__ == "__main__":
    mistake, *arguments = sys.argv[1:]
    if len(arguments) == 1:
        sys.exit(run(mistake, Path(arguments[0])))
    MISTAKES[mistake]()
    task.main(arguments)

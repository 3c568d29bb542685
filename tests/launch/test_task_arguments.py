"""The process of a task reads what its launcher, or the command `task`, has written."""

from pathlib import Path

import pytest

from ps_cluster.config.tasks import Task
from ps_cluster.launch.task_arguments import TaskArguments

CHIEF, WORKER, EVALUATOR = Task("chief", 0), Task("worker", 3), Task("evaluator", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        TaskArguments(Path("/runs/a run"), CHIEF, resume=True, least_workers=4),
        TaskArguments(Path("/runs/--resume"), WORKER, cores=(0, 2, 11)),
        TaskArguments(Path("/runs/one"), CHIEF, alone=True, term=7, least_workers=0, wait_s=600.5),
        TaskArguments(Path("/runs/one"), EVALUATOR, alone=True),
    ],
)
def test_a_task_reads_the_arguments_that_were_written_for_it(arguments):
    assert TaskArguments.parse(arguments.argv()) == arguments


def test_the_list_of_processes_shows_the_task_and_the_folder_of_its_run():
    shown = TaskArguments(Path("/runs/one"), WORKER, cores=(1,)).argv()
    assert shown == ("--run-dir", "/runs/one", "--type", "worker", "--index", "3", "--cores", "1")

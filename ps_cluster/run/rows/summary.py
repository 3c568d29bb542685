"""summary.json: what a run did."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from ps_cluster.run.rows.base import Count, Index, Loss, Number, Pid, Row, Seconds, Share, Word
from ps_cluster.run.rows.dataset import Name
from ps_cluster.run.rows.progress import WorkerRow
from ps_cluster.run.rows.scaling import ScalingRow
from ps_cluster.run.rows.scores import Ending, ScoreRow
from ps_cluster.run.rows.training import Gradients, Proof, StalenessRow, Updates

Outcome = Ending | Literal["failed"]


class ProcessWork(Row):
    """The work of one process of a worker."""

    pid: Pid
    updates: Count
    examples: Count


class WorkerSummary(WorkerRow):
    """The work of all processes of one worker. `pid` and `address` are of the newest."""

    address: Word | None = None
    restarts: Count = 0
    processes: list[ProcessWork] = []


class ServerSummary(Row):
    """A parameter server; None for unknown values."""

    index: Index
    pid: Pid | None = None
    address: Word | None = None
    parameters: Count | None = None
    restarts: Count = 0


class SilenceRow(Row):
    """A worker process that was ended because it did nothing (cluster/silence.py)."""

    worker: Index
    pid: Pid
    updates: Count
    seconds: Seconds


class ProcessUsage(Row):
    """A process's use of the machine; None for what could not be read."""

    type: Word
    index: Index
    pid: Pid
    cpu_seconds: Seconds | None = None
    peak_pss_bytes: Count | None = None


class EvaluationSummary(Row):
    """The last score, the best one, and all of them in the order of steps; None without any."""

    test_accuracy: Share | None = None
    test_error: Loss | None = None
    test_loss: Loss | None = None
    validation_accuracy: Share | None = None
    validation_error: Loss | None = None
    augmented_test_accuracy: Share | None = None
    step: Count | None = None
    best_test_accuracy: Share | None = None
    best_test_error: Loss | None = None
    best_step: Count | None = None
    best_chosen_on: Literal["test", "validation"] | None = None
    history: list[ScoreRow] = []


class NetworkSummary(Row):
    """Isolation of the ports from others, and the notice if there is none (processes/isolation.py)."""

    private: bool | None = None
    notice: str | None = None


class Summary(Row):
    """The whole file. Unknown names are kept, since an evaluation by hand writes the file again.

    Attributes:
      guess: the test accuracy or error of an answer that does not look at the inputs; None if unknown.
      learned: whether the best score is better than that; None if unknown.
      bad_losses: steps whose loss was NaN or infinite.
      leaders: how many led a training on several machines, one after the other; None on one machine.
    """

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)

    schema_: Count = Field(0, alias="schema")
    outcome: Outcome
    mode: Name | None = None
    trainer: Word | None = None
    staleness_method: Name | None = None
    simulate_workers: Count | None = None
    straggler: Word | None = None
    dataset: Name | None = None
    dataset_kind: Word | None = None
    unit: Word = "examples"
    guess: Loss | None = None
    learned: bool | None = None
    bad_losses: Count = 0
    model: Name | None = None
    precision: Word | None = None
    seed: Count | None = None
    settings: dict[Word, JsonValue] = {}
    workers: list[WorkerSummary] = []
    worker_processes: Count | None = None
    parameter_servers: list[ServerSummary] = []
    restarts: dict[Word, Count] = {}
    silences: list[SilenceRow] = []
    scaled: list[ScalingRow] = []
    updates: Updates = Updates()
    gradients: Gradients = Gradients()
    proof: Proof | None = None
    staleness: StalenessRow = StalenessRow()
    examples_per_second: Seconds | None = None
    train_seconds: Number = 0.0
    sessions: Count = 1
    leaders: Count | None = None
    session_train_seconds: Seconds | None = None
    goodput: Number | None = None
    rolled_back_seconds: Seconds = 0.0
    interrupted_seconds: Seconds = 0.0
    wall_seconds: Seconds | None = None
    startup_seconds: Number | None = None
    cpu_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    processes: list[ProcessUsage] = []
    machine: dict[Word, Word | bool | Count | Number | None] | None = None
    network: NetworkSummary = NetworkSummary()
    evaluation: EvaluationSummary = EvaluationSummary()

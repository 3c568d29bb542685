"""Define the rows of summary.json about the machine of a run, and about the resources that the run used."""

from __future__ import annotations

from pydantic import ConfigDict, JsonValue, SerializerFunctionWrapHandler, model_serializer

from ps_cluster.runs.rows import Count, Index, Number, Pid, Row, Seconds, Word


class ProcessUsage(Row):
    """Processor time and memory of a process; None for values that could not be read."""

    type: Word
    index: Index
    pid: Pid
    cpu_seconds: Seconds | None = None
    peak_pss_bytes: Count | None = None


class UsageRow(Row):
    """Processor time and memory of a run's processes (system/usage.py); None for values that are not known.

    Attributes:
      cpu_seconds: the sum over the training tasks. It does not include the evaluator, which uses only spare time.
      peak_memory_bytes: the highest sum over all processes at one time.
      processes: all processes, including the evaluator.
    """

    cpu_seconds: Seconds | None = None
    peak_memory_bytes: Count | None = None
    processes: list[ProcessUsage] = []


class MachineRow(Row):
    """The machine of a run (system/machine.py), without the name of the machine or of its user.

    Another version of this program may have written other fields. A field that the file lacks is None here, and an
    unknown field is kept. The row is written with exactly the fields with which it was read or created.

    Attributes:
      cores, memory_gb: what the run could use.
      cpu_limit, memory_limit_gb: the limits of the run's control group, in processor seconds per second and in GB; None
        without a limit.
      avx512_bf16, amx_bf16: whether the processor has these instructions for bfloat16.
      tensorflow: the version; None if it is not installed.
      commit: None outside a git checkout; ends in "-dirty" if a file differs from that commit.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Word | bool | Count | Number | None]

    processor: Word | None = None
    cores: Count | None = None
    cpu_limit: Number | None = None
    memory_gb: Number | None = None
    memory_limit_gb: Number | None = None
    avx512_bf16: bool | None = None
    amx_bf16: bool | None = None
    tensorflow: Word | None = None
    commit: Word | None = None

    @model_serializer(mode="wrap")
    def _as_it_was_made(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        values: dict[str, JsonValue] = write(self)
        return {name: value for name, value in values.items() if name in self.model_fields_set}


class NetworkSummary(Row):
    """Whether the run had a private computer network, so that no program outside of the run could reach its ports.

    `notice`: why the network was not private; None if it was.
    """

    private: bool | None = None
    notice: str | None = None

"""What TensorFlow says when it can't compute a graph, in the one line that a user needs."""

import pytest

from ps_cluster.models.failures import failure_of_computation, reason_of

BUILT = """Graph execution error:

Detected at node while/own_computation/mine/words/GatherV2 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "/home/ada/my.py", line 12, in call

"""
ASKED = " [[{{node while/own_computation/mine/words/GatherV2}}]]"
CALLS = """
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService:
:UNKNOWN:Error received from peer  {grpc_message:"indices[0,0] = 14 is not in [0, 10)", grpc_status:3}
"""
TWICE = f"""2 root error(s) found.
  (0) INVALID_ARGUMENT:   indices[0,0] = 14 is not in [0, 10)
\t{ASKED}{CALLS}
  (1) INVALID_ARGUMENT:  indices[0,0] = 14 is not in [0, 10)
\t{ASKED}
0 successful operations.
0 derived errors ignored. [Op:__inference_run_steps_1234]"""
REASON = "indices[0,0] = 14 is not in [0, 10)"


class OfTensorFlow(Exception):
    def __init__(self, text, code):
        super().__init__(text)
        self.error_code = code


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BUILT + TWICE, REASON),
        (BUILT + f"{REASON}\n\t{ASKED} [Op:__inference_sums_12]", REASON),
        ("assertion failed: [too large]\n[Condition x < y did not hold]\n\t [[{{node x}}]]",
         "assertion failed: [too large] [Condition x < y did not hold]"),
        (f"{{{{function_node __wrapped__GatherV2}}}} {REASON} [Op:GatherV2]", REASON),
        ("No space left on device", "No space left on device"),
        ("Graph execution error:", "Graph execution error:"),
    ],
)  # fmt: skip
def test_the_reason_is_whole_and_has_neither_the_stack_of_the_graph_nor_the_calls_that_it_came_by(text, reason):
    assert reason_of(OfTensorFlow(text, 3)) == reason


@pytest.mark.parametrize("code", [3, 9, 11, 12])
def test_a_failure_of_the_users_computation_names_layer_line_and_reason(code):
    told = failure_of_computation(OfTensorFlow(BUILT + TWICE, code))
    assert told == f"the network's own computation failed (in 'mine/words', my.py:12): {REASON}"


@pytest.mark.parametrize(
    "error",
    [
        OfTensorFlow(BUILT + TWICE, 14),  # a worker was lost
        OfTensorFlow(BUILT.replace("own_computation/", ""), 3),  # another part of the graph
        ValueError(BUILT + TWICE),
    ],
)
def test_any_other_failure_is_none_of_the_users_computation(error):
    assert failure_of_computation(error) is None

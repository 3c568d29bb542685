"""A test for each private name of TensorFlow and Keras. Where one fails with a new version, its message says what to do.

The functions around them are tested where they are used; here is what tells a name that is gone from a mistake of our own.
"""

import ast
import importlib
import importlib.util
import inspect
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import ps_cluster

pytestmark = pytest.mark.slow

PACKAGE = Path(ps_cluster.__file__).parent
MODULES = {
    "cluster_coordinator": "tensorflow.python.distribute.coordinator.cluster_coordinator",
    "context": "tensorflow.python.eager.context",
    "coordination_config_pb2": "tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2",
    "convert_to_constants": "tensorflow.python.framework.convert_to_constants",
    "resource_variable_ops": "tensorflow.python.ops.resource_variable_ops",
}
STRATEGY = tf.distribute.ParameterServerStrategy
GO_ON = "Until then keep TensorFlow and Keras as they are pinned in requirements.txt."


def names_in(function):
    """The names of attributes and variables that the code of a function uses."""
    return {*function.__code__.co_names, *function.__code__.co_varnames}


def advice(what):
    return f"{what} {GO_ON}"


# Imported where a test asks for them: what one of them lacks fails the tests of that, and not all.


@pytest.fixture
def private_names():
    return importlib.import_module("ps_cluster.private_names")


@pytest.fixture
def cluster_coordinator():
    return importlib.import_module(MODULES["cluster_coordinator"])


@pytest.fixture
def context():
    return importlib.import_module(MODULES["context"])


@pytest.fixture(scope="module")
def model():
    """A model with a model in it, a layer that draws, and a compile()."""
    inner = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dropout(0.5)], name="inner")
    given = keras.Input([3])
    made = keras.Model(given, keras.layers.Dense(2, name="last")(inner(given)))
    made.compile(optimizer="sgd", loss="mse", metrics=["mae"], weighted_metrics=["mse"])
    made.fit(tf.zeros([2, 3]), tf.zeros([2, 2]), verbose=0)
    return made


@pytest.mark.parametrize("module", MODULES.values())
def test_modules(module):
    assert importlib.util.find_spec(module), advice(
        f"{module} has moved: look for the names that private_names.py takes from it in TensorFlow's python/ folder, and "
        "import them from where they are."
    )


@pytest.mark.parametrize("name", ["ClosureInputError", "ClosureAbortedError"])
def test_errors_of_other_dispatches(name, cluster_coordinator):
    assert issubclass(getattr(cluster_coordinator, name, type), Exception), advice(
        f"{name} is what a dispatch raises whose input failed, or that was given up. See what `ClusterCoordinator.schedule` "
        "raises now, put that into CLOSURE_ERRORS, and run tests/training/test_membership.py."
    )


@pytest.mark.parametrize("name", ["_is_worker_failure", "_is_ps_failure"])
def test_what_a_failure_means(name, cluster_coordinator):
    assert list(inspect.signature(getattr(cluster_coordinator, name, lambda: 0)).parameters) == ["error"], advice(
        f"{name} reads the error's class and text. Copy it from the version before (Apache 2.0), and see in "
        "tests/training/test_membership.py that a killed worker's and a killed parameter server's texts are still the same."
    )


def test_the_coordinator_has_a_cluster(cluster_coordinator):
    assert "_cluster" in names_in(cluster_coordinator.ClusterCoordinator.__init__), advice(
        "`ClusterCoordinator._cluster` has the workers, whose failures go to Membership. Look where `schedule` hands a "
        "closure to now, and reach the workers from there in replace_failure_handler()."
    )


def test_a_cluster_has_workers_and_a_handler_of_failures(cluster_coordinator):
    names = names_in(cluster_coordinator.Cluster.__init__) & names_in(cluster_coordinator.Worker.__init__)
    both = {"failure_handler"} <= names and "workers" in names_in(cluster_coordinator.Cluster.__init__)
    assert both, advice(
        "`failure_handler` of the cluster and of each of its `workers` decides what a failed dispatch does. Find what catches "
        "a worker's failure now (`_process_closure`), and give it Membership in replace_failure_handler()."
    )


def test_a_handler_of_failures_is_asked_as_membership_answers(cluster_coordinator):
    from ps_cluster.training.membership import Membership

    handler = getattr(cluster_coordinator, "WorkerPreemptionHandler", object)
    asked = inspect.signature(getattr(handler, "wait_on_failure", lambda: 0)).parameters
    assert list(asked) == list(inspect.signature(Membership.wait_on_failure).parameters), advice(
        "WorkerPreemptionHandler.wait_on_failure is what Membership stands in for. Give `Membership.wait_on_failure` the "
        f"new parameters, {list(asked)}, with their meaning."
    )


def test_the_strategy_connects_in_a_method_of_its_own():
    method = getattr(STRATEGY, "_connect_to_cluster", None)
    assert method and list(inspect.signature(method).parameters) == ["self", "coordinator_name"], advice(
        "PartlyConnectedStrategy wraps `_connect_to_cluster`, to connect to fewer workers than it has. Find in "
        "`ParameterServerStrategy.__init__` what connects now, and wrap that."
    )


def test_the_strategy_counts_its_workers():
    assert "_num_workers" in names_in(STRATEGY._connect_to_cluster), advice(
        "`_num_workers` makes the coordinator have a thread for each worker that may come. See what `Cluster.__init__` reads "
        "the number from now, and set that in PartlyConnectedStrategy."
    )


def test_the_seconds_that_servers_keep_things(context):
    assert context._KEEP_ALIVE_SECS == 600, advice(
        "`_KEEP_ALIVE_SECS` is how long servers keep the weights of a leader that has died. Find what `connect_to_cluster` "
        "passes on as `keep_alive_secs`; without a way to set it, servers of a run without a launcher need memory for several."
    )


METHODS = {
    "update_server_def": (
        ["server_def", "keep_alive_secs"],
        "It adds and removes workers while the others go on. Without it a worker that comes later can't be taken in: see "
        "whether `tf.config.experimental_connect_to_cluster` keeps resources by now.",
    ),
    "abort_collective_ops": (
        ["code", "message"],
        "It ends an all-reduce that waits for a lost worker. Without it, end the process (os._exit) in all_reduce.train.",
    ),
    "wait_at_barrier": (
        ["barrier_id", "timeout_in_ms"],
        "Workers wait there until nobody needs them. Without it, let all_reduce._leave sleep for _LEAVE_WITHIN_S.",
    ),
    "configure_coordination_service": (
        ["service_type", "service_leader", "heartbeat_timeout_in_ms", "coordinated_jobs"],
        "It sets the heartbeat's timeout. Without it a run by all-reduce that was suspended for longer fails when it goes on: "
        "look for a public option, or for a variable of the environment.",
    ),
    "enable_run_metadata": (
        [],
        "Without the three of them `--log-placement` has no device of each operation: drop it.",
    ),
    "disable_run_metadata": ([], "See enable_run_metadata."),
    "export_run_metadata": ([], "See enable_run_metadata."),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_context(name, context):
    wanted, what = METHODS[name]
    there = inspect.signature(getattr(context.Context, name, lambda: 0)).parameters
    assert getattr(context.Context, name, None) and set(wanted) <= set(there), advice(f"`Context.{name}`: {what}")


def test_the_description_of_the_cluster(context):
    assert callable(getattr(context, "get_server_def", None)), advice(
        "`get_server_def` is what the process is connected by. Keep the description in PartlyConnectedStrategy instead."
    )


def test_the_description_of_jobs_of_an_all_reduce():
    job = importlib.import_module(MODULES["coordination_config_pb2"]).CoordinatedJob(name="worker", num_tasks=2)
    assert (job.name, job.num_tasks) == ("worker", 2), advice(
        "CoordinatedJob has moved before: look for coordination_config.proto, or what coordinated_jobs takes now."
    )


def test_an_operation_is_marked_against_folding(private_names):
    with tf.Graph().as_default():
        one = tf.identity(1.0)
        private_names.keep_from_folding(one)
        assert "_scoped_allocator" in one.op.node_def.attr, advice(
            "`_set_attr` keeps the packed data set from being copied by constant folding, 150 MB a process with CIFAR-10. Look "
            "at IsConstantFoldable (common_runtime/constant_folding.cc) for what it skips now; tests/data/test_batches.py "
            "measures it."
        )


def test_variables_become_constants(private_names):
    variable = tf.Variable(2.0)
    graph = tf.function(lambda x: x * variable).get_concrete_function(tf.TensorSpec([]))
    assert not private_names.frozen(graph).variables, advice(
        "convert_variables_to_constants_v2 is for the export to TensorFlow Lite. See whether the converter reads Keras's "
        "variables by now (from_concrete_functions), and drop _save_frozen; tests/evaluation/test_export.py compares them."
    )


def test_a_variable_of_the_process_that_runs_a_graph(private_names):
    @tf.function(autograph=False)
    def count(step):
        number = private_names.variable_of_process("tests/count", [], tf.int64)
        is_there = tf.raw_ops.VarIsInitializedOp(resource=number.handle)
        tf.cond(is_there, lambda: tf.no_op(), lambda: number.assign(step, read_value=False))
        return number.assign_add(1)

    found = [int(count(tf.constant(5, tf.int64))) for _ in range(2)]
    assert found == [6, 7], advice("Look for how resource_variable_ops makes a variable of a handle.")


def test_layers_within_layers(model, private_names):
    names = [layer.name for layer in private_names.layers_of(model)]
    assert {"inner", "last", "dense", "dropout"} <= {name.rstrip("_0123456789") for name in names}, advice(
        "`_flatten_layers` finds layers within layers. Without it, walk over `layers` of models and wrappers, and over the "
        "attributes of layers of a user's own."
    )


def test_the_own_weights_of_a_frozen_layer(private_names):
    layer = keras.layers.Dense(2)
    layer.build([None, 3])
    layer.trainable = False
    assert len(private_names.own_weights_of(layer)) == 2, advice(
        "`_trainable_variables` has a frozen layer's weights. Without it, take `layer.variables` with `trainable` set, less "
        "those of the layers in it."
    )


def test_the_seed_generators_of_a_layer(private_names):
    (generator,) = private_names.seed_generators_of(keras.layers.Dropout(0.5))
    assert isinstance(generator, keras.random.SeedGenerator), advice(
        "`_seed_generators` has a layer's sources of random numbers. Without it, look for SeedGenerator among the attributes."
    )


def test_a_call_that_takes_training(model, private_names):
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    assert (private_names.takes_training(model), private_names.takes_training(Own())) == (True, False), advice(
        "`_call_has_training_arg` tells whether `call` has an argument `training`. See what keras's `Trainer.train_step` asks."
    )


def test_where_a_symbolic_tensor_came_from(model, private_names):
    layer, (given,) = private_names.made_by(model.output)
    assert layer.name == "last" and private_names.made_by(given)[0].name == "inner", advice(
        "`_keras_history` and `_inbound_nodes` lead from a model's output to the layer before. Without them, take the units "
        "off a saved regression by `model.layers[-2].output`."
    )


def test_what_a_sequential_is_made_of(private_names):
    one = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    graph = private_names.functional_of(one)
    assert [call.operation.name for call in private_names.calls_of(graph)][-1] == one.layers[-1].name, advice(
        "`Sequential._functional` has the calls of its layers. Without it, make keras.Model(one.inputs, one.outputs) of it."
    )


def test_the_calls_of_layers(model, private_names):
    calls = private_names.calls_of(model)
    assert [call.operation.name for call in calls][1:] == ["inner", "last"], advice(
        "`_nodes_by_depth` has the calls of layers, each with is_input, operation, input_tensors and output_tensors. Modes "
        "`layers` and `width` cut the network there. Without it, follow private_names.made_by() from the outputs on."
    )


def test_the_losses_of_compile(model, private_names):
    (one,) = private_names.losses_of(private_names.compiled_loss_of(model))
    assert {"path", "loss", "loss_weights"} <= set(one._fields) and isinstance(one.loss, keras.Loss), advice(
        "`_compile_loss` and its `_flat_losses` are the losses of compile(), one for each output. See how "
        "`CompileLoss.call` goes over them now."
    )


def test_the_metrics_of_compile(model, private_names):
    compiled = private_names.compiled_metrics_of(model)
    names = [metric.name for metric, _ in private_names.metrics_of(compiled, tf.zeros([1, 2]))]
    assert names == ["mae", "mse"], advice(
        "`_compile_metrics` with `_flatten_y`, `_flat_metrics` and `_flat_weighted_metrics` are the metrics of compile(), for "
        "each output. See how `CompileMetrics.update_state` goes over them now."
    )


def test_what_was_compiled_is_given_to_a_copy(model, private_names):
    copy = keras.models.clone_model(model)
    private_names.copy_compiled(model, to=copy)
    same = copy._compile_loss is model._compile_loss and len(copy.layers) == len(model.layers)
    assert same and copy.optimizer is model.optimizer, advice(
        "`copy_compiled` goes around Keras's tracking of attributes. Compile the copy with `model.get_compile_config()`."
    )


@pytest.mark.parametrize("wrapper", [keras.losses.MeanSquaredError(), keras.metrics.MeanSquaredError()])
def test_the_function_of_a_loss_or_a_metric(wrapper, private_names):
    assert private_names.wrapped_by(wrapper) is keras.losses.mean_squared_error, advice(
        "`fn` of a loss and `_fn` of a metric tell whether Keras compares rows. Without it, look at its class's name."
    )


@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis -1:UserWarning")
@pytest.mark.parametrize("activation", [keras.activations.softmax, keras.activations.sigmoid])
def test_the_scores_that_an_activation_notes_are_those_of_a_cross_entropy(activation, private_names):
    scores = tf.constant([[60.0]])
    logits, mask = private_names.notes_of(activation(scores))
    told = private_names.with_notes(tf.constant([[1.0]]), [logits, mask])
    noted = (
        logits is scores
        and mask is None
        and float(keras.losses.BinaryCrossentropy()(tf.constant([[0.0]]), told)) == pytest.approx(60)
    )
    assert noted and private_names.notes_of(scores) == [None, None], advice(
        "`_keras_logits` has the scores of a probability, from which Keras's cross-entropies compute (`_get_logits`). See "
        "where they look for them now: without, a probability of 0 or 1 has no gradient, where it has one in `fit`."
    )


def test_nobody_else_uses_a_private_name():
    """Of another library: a name with an underscore that nothing in this package defines, but for those of the standard one."""
    trees = {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    own = {"_asdict", "_replace", "_exit", "_trial_id"}  # of namedtuples, of os, of Optuna's trials
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    used = []
    for file, tree in trees.items():
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            private = name.startswith("_") and not name.startswith("__") and name not in own
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if private or module.startswith(("tensorflow.", "keras.src")):
                used.append(f"{file.relative_to(PACKAGE)}:{node.lineno}: {name or module}")
    assert [one for one in used if not one.startswith("private_names.py")] == []

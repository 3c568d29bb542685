"""Check each private name of TensorFlow and Keras. If a check fails with a new version, its message says what to do.

The functions around them are tested where they are used; here is what tells a name that is gone from a mistake of our own.
"""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import ps_cluster

pytestmark = pytest.mark.slow

PACKAGE = Path(ps_cluster.__file__).parent
STRATEGY = tf.distribute.ParameterServerStrategy
GO_ON = "Until then keep TensorFlow and Keras as they are pinned in requirements.txt."
CHECKS = {}


def advice(text):
    """Register a check. `text`: what the names are for, and what to do without them."""
    return lambda check: CHECKS.setdefault(check.__name__.replace("_", " "), (check, f"{text} {GO_ON}"))


# Each check imports these modules itself. So a name that one module lacks fails only the checks of that module.


def names():
    return importlib.import_module("ps_cluster.private_names")


def coordinator():
    return importlib.import_module("tensorflow.python.distribute.coordinator.cluster_coordinator")


def context():
    return importlib.import_module("tensorflow.python.eager.context")


def used_by(function):
    """Return the names of attributes and variables that the code of a function uses."""
    return {*function.__code__.co_names, *function.__code__.co_varnames}


def parameters(function):
    return list(inspect.signature(function).parameters)


@cache
def model():
    """Return a model with a model in it, a layer that draws, and a compile()."""
    inner = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dropout(0.5)], name="inner")
    given = keras.Input([3])
    made = keras.Model(given, keras.layers.Dense(2, name="last")(inner(given)))
    made.compile(optimizer="sgd", loss="mse", metrics=["mae"], weighted_metrics=["mse"])
    made.evaluate(tf.zeros([2, 3]), tf.zeros([2, 2]), verbose=0)
    return made


@advice("See what `ClusterCoordinator.schedule` raises where the input of a dispatch failed, or it was given up.")
def errors_of_other_dispatches():
    return all(issubclass(error, Exception) for error in names().CLOSURE_ERRORS)


@advice("They read the error's class and text. Copy them from the version before, and run training/test_membership.py.")
def what_a_failure_means():
    return parameters(coordinator()._is_worker_failure) == parameters(coordinator()._is_ps_failure) == ["error"]


@advice("It has the workers, whose failures go to Membership. See where `schedule` hands a closure to now.")
def the_coordinator_has_a_cluster():
    return "_cluster" in used_by(coordinator().ClusterCoordinator.__init__)


@advice("It decides what a failed dispatch does. Find what catches a worker's failure now, and give it Membership.")
def a_cluster_and_its_workers_have_a_handler_of_failures():
    of_cluster, of_worker = (used_by(one.__init__) for one in (coordinator().Cluster, coordinator().Worker))
    return "failure_handler" in of_cluster & of_worker and "workers" in of_cluster


@advice("Membership stands in for WorkerPreemptionHandler. Give `Membership.wait_on_failure` the new parameters.")
def a_handler_of_failures_is_asked_as_membership_answers():
    from ps_cluster.training.membership import Membership

    return parameters(coordinator().WorkerPreemptionHandler.wait_on_failure) == parameters(Membership.wait_on_failure)


@advice("PartlyConnectedStrategy wraps it, to connect to fewer workers. Wrap what `ParameterServerStrategy` calls now.")
def the_strategy_connects_in_a_method_of_its_own():
    return parameters(STRATEGY._connect_to_cluster) == ["self", "coordinator_name"]


@advice("It gives the coordinator a thread for each worker that may come. See what `Cluster.__init__` reads now.")
def the_strategy_counts_its_workers():
    return "_num_workers" in used_by(STRATEGY._connect_to_cluster)


@advice(
    "So long servers keep the weights of a dead leader. Find what `connect_to_cluster` passes as `keep_alive_secs`."
)
def the_seconds_that_servers_keep_things():
    return context()._KEEP_ALIVE_SECS == 600


METHODS = {  # with their parameters, and what to do without them
    "update_server_def": (
        ["server_def", "keep_alive_secs"],
        "It takes in workers that come later: see whether `experimental_connect_to_cluster` keeps resources by now.",
    ),
    "abort_collective_ops": (["code", "message"], "End the process (os._exit) in all_reduce.train."),
    "wait_at_barrier": (["barrier_id", "timeout_in_ms"], "Let all_reduce._leave sleep for _LEAVE_WITHIN_S."),
    "configure_coordination_service": (
        ["service_type", "service_leader", "heartbeat_timeout_in_ms", "coordinated_jobs"],
        "It sets the heartbeat's timeout, without which a suspended all-reduce fails: look for a public option.",
    ),
    "enable_run_metadata": ([], "Drop `--log-placement`, which needs this and the next two."),
    "disable_run_metadata": ([], "See enable_run_metadata."),
    "export_run_metadata": ([], "See enable_run_metadata."),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_context(name):
    wanted, what = METHODS[name]
    there = parameters(getattr(context().Context, name, lambda: 0))
    assert hasattr(context().Context, name) and set(wanted) <= set(there), f"`Context.{name}` is gone: {what} {GO_ON}"


@advice("It is what the process is connected by. Keep the description in PartlyConnectedStrategy instead.")
def the_description_of_the_cluster():
    return callable(context().get_server_def)


@advice("It has moved before: look for coordination_config.proto, or what coordinated_jobs takes now.")
def the_description_of_jobs_of_an_all_reduce():
    job = names().coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2)
    return (job.name, job.num_tasks) == ("worker", 2)


@advice("Else packed data is copied, 150 MB a process. See what IsConstantFoldable (constant_folding.cc) skips now.")
def an_operation_is_marked_against_folding():
    with tf.Graph().as_default():
        one = tf.identity(1.0)
        names().keep_from_folding(one)
        return "_scoped_allocator" in one.op.node_def.attr


@advice("For the export to TensorFlow Lite. See whether its converter reads Keras's variables by now.")
def variables_become_constants():
    variable = tf.Variable(2.0)
    graph = tf.function(lambda x: x * variable).get_concrete_function(tf.TensorSpec([]))
    return not names().frozen(graph).variables


@advice("Look for how resource_variable_ops makes a variable of a handle.")
def a_variable_of_the_process_that_runs_a_graph():
    @tf.function(autograph=False)
    def count(step):
        number = names().variable_of_process("tests/count", [], tf.int64)
        is_there = tf.raw_ops.VarIsInitializedOp(resource=number.handle)
        tf.cond(is_there, lambda: tf.no_op(), lambda: number.assign(step, read_value=False))
        return number.assign_add(1)

    return [int(count(tf.constant(5, tf.int64))) for _ in range(2)] == [6, 7]


@advice("Walk over `layers` of models and wrappers, and over the attributes of layers of a user's own.")
def layers_within_layers():
    found = {layer.name.rstrip("_0123456789") for layer in names().layers_of(model())}
    return {"inner", "last", "dense", "dropout"} <= found


@advice("Take `layer.variables` with `trainable` set, less those of the layers in it.")
def the_own_weights_of_a_frozen_layer():
    layer = keras.layers.Dense(2, trainable=False)
    layer.build([None, 3])
    return len(names().own_weights_of(layer)) == 2


@advice("Look for SeedGenerator among the layer's attributes.")
def the_seed_generators_of_a_layer():
    (generator,) = names().seed_generators_of(keras.layers.Dropout(0.5))
    return isinstance(generator, keras.random.SeedGenerator)


@advice("See what keras's `Trainer.train_step` asks to know whether `call` has an argument `training`.")
def a_call_that_takes_training():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    return names().has_training_argument(model()) and not names().has_training_argument(Own())


@advice("Take the units off a saved regression by `model.layers[-2].output`.")
def where_a_symbolic_tensor_came_from():
    layer, (given,) = names().origin_of(model().output)
    return layer.name == "last" and names().origin_of(given)[0].name == "inner"


@advice("Make keras.Model(one.inputs, one.outputs) of a Sequential.")
def what_a_sequential_is_made_of():
    one = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    return names().calls_of(names().functional_of(one))[-1].operation.name == one.layers[-1].name


@advice("Modes `layers` and `width` cut the network there: follow private_names.origin_of() from the outputs on.")
def the_calls_of_layers():
    return [call.operation.name for call in names().calls_of(model())][1:] == ["inner", "last"]


@advice("See how `CompileLoss.call` goes over the losses of the outputs now.")
def the_losses_of_compile():
    (one,) = names().losses_of(names().compiled_loss_of(model()))
    return {"path", "loss", "loss_weights"} <= set(one._fields) and isinstance(one.loss, keras.Loss)


@advice("See how `CompileMetrics.update_state` goes over the metrics of the outputs now.")
def the_metrics_of_compile():
    compiled = names().compiled_metrics_of(model())
    return [metric.name for metric, _ in names().metrics_of(compiled, tf.zeros([1, 2]))] == ["mae", "mse"]


@advice("It goes around Keras's tracking of attributes. Compile the copy with `model.get_compile_config()`.")
def what_was_compiled_is_given_to_a_copy():
    copy = keras.models.clone_model(model())
    names().copy_compiled(model(), to=copy)
    same = copy._compile_loss is model()._compile_loss and len(copy.layers) == len(model().layers)
    return same and copy.optimizer is model().optimizer


@advice("`fn` of a loss and `_fn` of a metric tell whether Keras compares rows. Look at its class's name.")
def the_function_of_a_loss_or_a_metric():
    both = keras.losses.MeanSquaredError(), keras.metrics.MeanSquaredError()
    return all(names().wrapped_function_of(one) is keras.losses.mean_squared_error for one in both)


@advice("See where cross-entropies look for the logits now (`_get_logits`): a probability of 0 or 1 has no gradient.")
def the_scores_that_an_activation_notes_are_those_of_a_cross_entropy():
    scores, loss = tf.constant([[60.0]]), keras.losses.BinaryCrossentropy()
    for activation in (keras.activations.softmax, keras.activations.sigmoid):
        logits, mask = names().notes_of(activation(scores))
        told = names().with_notes(tf.constant([[1.0]]), [logits, mask])
        if logits is not scores or mask is not None or float(loss(tf.constant([[0.0]]), told)) != pytest.approx(60):
            return False
    return names().notes_of(scores) == [None, None]


@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis -1:UserWarning")
@pytest.mark.parametrize("name", CHECKS)
def test_a_private_name_is_there_and_does_what_it_is_used_for(name):
    check, what_to_do = CHECKS[name]
    try:
        holds = check()
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        pytest.fail(f"{error!r}: {what_to_do}")
    assert holds, what_to_do


def test_nobody_else_uses_a_private_name():
    """A private name is one with an underscore that neither this package nor the standard library defines."""
    trees = {file: ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    own = {"_asdict", "_fields", "_replace", "_exit", "_trial_id"}  # of namedtuples, of os, of Optuna's trials
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
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

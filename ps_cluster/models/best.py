"""Load the best model of a run, and check before the run that its best model can be loaded afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras

from ps_cluster.config.networks import NETWORKS, NetworkSettings, SavedNetwork
from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.files.values import join_names, one_line
from ps_cluster.models.build import build
from ps_cluster.models.compiled_heads import head_of
from ps_cluster.models.saved import load_unchanged
from ps_cluster.private_names import layers_of


def load_best(file: Path, settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    """Return the best model of a run, which the evaluator has saved to `file`.

    Keras can't load a file with layers that it doesn't know, such as a `Lambda` of Python code, or a class that is
    defined in a script or inside a function. Such a network is built again by the user's code, to which
    `settings.name` refers, and then gets the weights of the file.

    Raises:
      UserError: the user has not allowed this code to run, e.g. with the option `--code`.
      Exception: the file is damaged, or belongs to another network.
    """
    try:
        return load_unchanged(file)
    except (TypeError, ValueError, NotImplementedError):
        if not is_built_by_code(settings.name):
            raise
    model = build_finished(settings, spec)
    model.load_weights(file)
    return model


def is_built_by_code(name: str) -> bool:
    """Return whether a user's code builds the network `name`.

    Return False for a network of this package, and for a saved model.
    """
    return name not in NETWORKS.own and not isinstance(NETWORKS[name], SavedNetwork)


def build_finished(settings: NetworkSettings, spec: ExampleSpec) -> keras.Model:
    """Return an untrained network, including the layers that the evaluator adds before it saves the network."""
    model = build(settings, spec, seed=0)
    return head_of(spec, model=model).finished(model)


def check_saving(model: keras.Model, settings: NetworkSettings, spec: ExampleSpec) -> str | None:
    """Check that a network can be saved and loaded again, as the evaluator and `predict` do after the training.

    Return one line that says why Keras can't load the file without the user's code, or None if it can. Raises
    ValueError if the network can't be saved, or if the saved file can't be loaded even with that code.
    """
    saved = head_of(spec, model=model).finished(model)
    with tempfile.TemporaryDirectory(prefix="ps-cluster-saved-") as folder:
        file = Path(folder, "model.keras")
        try:
            saved.save(file)
            reason = _why_keras_cannot_load(saved, file)
            # A later process may not know a class that this process knows. So load the file as the later process will.
            loaded = (
                build_finished(settings, spec) if reason and is_built_by_code(settings.name) else load_unchanged(file)
            )
            loaded.load_weights(file)
        except Exception as error:
            raise ValueError(
                f"the best model could not be loaded after the training: {_first_sentence(error)}"
            ) from error
    shapes = [[variable.shape for variable in one.variables] for one in (saved, loaded)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "the best model could not be loaded after the training: its layers differ each time it is built"
        )
    return reason


def _why_keras_cannot_load(saved: keras.Model, file: Path) -> str | None:
    """Return one line that says why Keras can't load the file without the user's code, or None if it can."""
    kinds = map(type, layers_of(saved))
    if own := dict.fromkeys(
        kind.__name__ for kind in kinds if not kind.__module__.startswith(("keras.", "ps_cluster."))
    ):
        return f"Keras does not know {join_names(list(own))}"
    try:
        keras.models.load_model(file, compile=False, safe_mode=True)
    except Exception as error:
        return _first_sentence(error)
    return None


def _first_sentence(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}".partition(". ")[0], 300)

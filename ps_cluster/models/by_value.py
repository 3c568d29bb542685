"""Send a Keras model that uses classes or functions of a script to other processes.

A .keras file contains only the names of such classes and functions, and only the script can resolve these names. So
`by_value` puts the content of the file, and the classes and functions themselves, into one function. cloudpickle can
write this function.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias, TypeGuard

import keras

from ps_cluster.config.objectives import ExampleSpec
from ps_cluster.models.compiled_optimizer import optimizer_of
from ps_cluster.models.saved import in_own_units
from ps_cluster.private_names import given_to_compile, layers_of, wrapped_function_of

_FOLDERS_OF_KERAS = ("keras.", "tensorflow.", "numpy", "builtins", "functools")
OwnObjects: TypeAlias = Mapping[str, type | FunctionType]
"""Classes and functions by the names under which a saved model refers to them."""


def own_objects(model: keras.Model) -> OwnObjects:
    """Return, by name, the classes and functions that a saved model refers to and that Keras does not define.

    They define layers, losses, metrics, optimizers, initialisers and so on. Classes and functions that the script has
    registered with Keras appear a second time, under their registered names.
    """
    found: dict[str, type | FunctionType] = {}
    for thing in _parts_of(model):
        kind = thing if isinstance(thing, type | FunctionType) else type(thing)
        if not (kind.__module__ or "").startswith(_FOLDERS_OF_KERAS):
            found[kind.__name__] = kind
            found[keras.saving.get_registered_name(kind)] = kind
    return found


def by_value(content: bytes, objects: OwnObjects) -> Callable[[ExampleSpec], keras.Model]:
    """Return a function that builds a model, compiled and with its weights, in any process.

    `content`: the bytes of the model's .keras file. `objects`: the result of `own_objects` for the model.
    """
    return partial(_copy, content=content, objects=dict(objects))


def _copy(examples: ExampleSpec, *, content: bytes, objects: OwnObjects) -> keras.Model:
    with tempfile.TemporaryDirectory(prefix="ps-cluster-model-") as folder:
        file = Path(folder, "model.keras")
        file.write_bytes(content)
        # Safe mode would refuse functions that are stored as code. It would not protect from anything here, because
        # everything in the copy is code that the caller has sent.
        loadable = {name: _LayerByArguments(one) if _lacks_config(one) else one for name, one in objects.items()}
        model = keras.saving.load_model(file, custom_objects=loadable, safe_mode=False)
    return in_own_units(model, examples)


def _lacks_config(kind: type | FunctionType) -> TypeGuard[type[keras.Layer]]:
    """Return whether `kind` is a layer class that has no `get_config` of its own, and no `**kwargs` in `__init__`."""
    if not (isinstance(kind, type) and issubclass(kind, keras.Layer)):
        return False
    layer: Any = kind
    if layer.get_config is not keras.Layer.get_config or layer.__init__ is keras.Layer.__init__:
        return False
    return all(one.kind is not one.VAR_KEYWORD for one in inspect.signature(layer.__init__).parameters.values())


class _LayerByArguments:
    """A substitute for a layer class without `get_config`. It is used while a model is loaded.

    Keras records the arguments with which a layer of such a class was created, and saves them together with `trainable`
    and `dtype`. To load the layer, Keras passes all these values to `__init__`, which fails if it has no `**kwargs`.
    """

    def __init__(self, kind: type[keras.Layer]):
        self._kind = kind

    def from_config(self, config: Mapping[str, Any]) -> keras.Layer:
        """Create a layer with the saved arguments, set its `trainable` and `dtype`, and return it."""
        taken = inspect.signature(self._kind.__init__).parameters
        layer = self._kind.from_config({name: value for name, value in config.items() if name in taken})
        if "dtype" not in taken:
            layer.dtype_policy = keras.dtype_policies.deserialize(config["dtype"])
        if "trainable" not in taken and not config["trainable"]:
            layer.trainable = False
        return layer


def _parts_of(model: keras.Model) -> Iterator[object]:
    """Yield all parts of a model whose class or function may be defined in a script."""
    for layer in layers_of(model):
        yield layer
        # Keras wraps some methods of a layer, and keeps them as attributes of the object.
        values = [value for name, value in vars(layer).items() if not hasattr(type(layer), name)]
        for value in values:
            yield from _with_config(value)
    for loss_or_metric in keras.tree.flatten(given_to_compile(model)):
        yield from _with_config(loss_or_metric)
        yield from _with_config(wrapped_function_of(loss_or_metric))
    if (optimizer := optimizer_of(model)) is not None:
        yield optimizer


def _with_config(value: object) -> Iterator[object]:
    """Yield the elements of `value` that are functions or have a method `get_config`, except layers.

    A `value` that is neither a list nor a tuple counts as a single element.
    """
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, FunctionType) or (hasattr(one, "get_config") and not isinstance(one, keras.Layer)):
            yield one

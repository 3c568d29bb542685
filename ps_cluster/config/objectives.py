"""Describe a data set's examples (named arrays of any dtype and shape), and define the objectives.

This module does not import TensorFlow.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ps_cluster.config.registry import Named, Registry
from ps_cluster.errors import UserError, did_you_mean
from ps_cluster.files.values import Malformed, number_text

if TYPE_CHECKING:
    from ps_cluster.config import RunConfig
    from ps_cluster.models.heads import ObjectiveHead
    from ps_cluster.report.analysis import Analysis

TARGET, WEIGHT = "target", "weight"  # the names of the arrays that are not inputs
TEXT = "string"  # the dtype of texts, as TensorFlow calls it
BYTES = 256  # the number of values of a byte


def target_array(output: str) -> str:
    """Return the name of the array with the targets of a further output. No input can have this name."""
    return f"{TARGET}.{output}"


def numbered_output(place: int) -> str:
    """Return a name for the output at index `place`: "output_0", "output_1", …

    Outputs get these names if the user gives targets without names, in the order of the outputs.
    """
    return f"output_{place}"


def are_numbered(outputs: Sequence[str]) -> bool:
    """Return whether `outputs` are the names "output_0", "output_1", … that `numbered_output` makes."""
    return list(outputs) == [numbered_output(place) for place in range(len(outputs))]


@runtime_checkable
class FieldValues(Protocol):
    """The values of one field in many examples: a numpy array, or an object whose slices are numpy arrays."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


def check_rows(what: str, value: object) -> None:
    """Raise Malformed if a value is not an array with a row for each example."""
    refuse_sparse(what, value)
    if not isinstance(value, FieldValues) or not value.shape:
        raise Malformed(f"{what} is {type(value).__name__}, not an array with a row for each example")


def refuse_sparse(what: str, value: object) -> None:
    """Raise Malformed for a sparse matrix of scipy, which looks like an array but has no length."""
    if hasattr(value, "toarray"):
        raise Malformed(f"{what} is a sparse {type(value).__name__}: give an array, e.g. its toarray()")


@dataclass(frozen=True)
class ArrayField:
    """The description of one of the arrays of an example, such as an input or the target.

    Attributes:
      dtype: the name of the numpy dtype, e.g. "uint8"; "string" for texts.
      shape: the shape for one example, e.g. (32, 32, 3); () for a number.
      mean, std: the mean and the standard deviation of the training examples for each position of the last axis (one
        value for a number), in the field's units; empty if unknown.
      codes: the number of different codes at each position of the last axis, if the field has codes, such as the
        categories of a table. Codes count from 0. Empty for any other field.
      characters: for texts, which are packed as code points and padded with 0: the number of characters of the longest
        text.
      code: for texts: the dtype of a code point.
    """

    dtype: str
    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    codes: tuple[int, ...] = ()
    characters: int = 0
    code: str = ""

    @property
    def packed(self) -> ArrayField:
        """The field in its packed form. Texts are packed as code points, along an additional last axis."""
        return ArrayField(self.code, (*self.shape, self.characters)) if self.dtype == TEXT else self

    @property
    def row_bytes(self) -> int:
        """The size, in bytes, of this field in one packed example."""
        return np.dtype(self.packed.dtype).itemsize * math.prod(self.packed.shape)

    @property
    def is_image(self) -> bool:
        """True for pixels: uint8 [height, width, channels], with 1 or 3 channels."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] in (1, 3)

    @property
    def network_dtype(self) -> str:
        """The dtype in which networks get the field: float32 for pixels, else `dtype`."""
        return "float32" if self.is_image else self.dtype


@dataclass(frozen=True)
class OtherTarget:
    """The target of a further output of a network, with its objective and classes, as in an `ExampleSpec`."""

    field: ArrayField
    objective: str
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExampleSpec:
    """The description of an example: the inputs of the network, and the target that the network has to predict."""

    inputs: Mapping[str, ArrayField]  # in the network's order
    target: ArrayField  # the field to predict, e.g. a label
    objective: str = "classification"
    classes: tuple[str, ...] = ()  # the names of the classes, by label; empty for a regression
    weight: ArrayField | None = None  # a float of shape (); None if all examples count equally
    output: str = ""  # the name of the output that has to predict the target, if there are `others`
    # The targets of further outputs, by the name of the output. The metric, the analysis and the predictions of a run
    # are those of `output`.
    others: Mapping[str, OtherTarget] = field(default_factory=dict)

    @property
    def targets(self) -> dict[str, ExampleSpec]:
        """A spec for each target, by the name of the target's array: a copy of this spec with only that target."""
        others = {
            target_array(name): replace(
                self, target=one.field, objective=one.objective, classes=one.classes, output=name, others={}
            )
            for name, one in self.others.items()
        }
        return {TARGET: replace(self, others={}), **others}

    @property
    def outputs(self) -> int:
        """The number of values that a network returns for an example.

        If the target has classes, there is one value for each class. If it consists of codes, e.g. the bytes of a text,
        there is one value for each possible code at each position. Else there is one for each number in the target.
        """
        return len(self.classes) or sum(self.target.codes) or math.prod(self.target.shape)

    @property
    def unit(self) -> str:
        """The word for several examples: "images" if each example is one image, else "examples"."""
        fields = list(self.inputs.values())
        return "images" if len(fields) == 1 and fields[0].is_image else "examples"

    def image(self, network: str) -> ArrayField:
        """Return the only input, which has to be an image. Otherwise raise UserError with the name of the network."""
        fields = list(self.inputs.values())
        if len(fields) != 1 or not fields[0].is_image:
            as_pixels = ""
            if len(fields) == 1 and replace(fields[0], dtype="uint8").is_image:
                as_pixels = ": if its numbers are pixels from 0 to 255, give them as .astype('uint8')"
            raise UserError(
                f"model.name: '{network}' takes images (uint8 [height, width, 1 or 3]); got {self}{as_pixels}"
            )
        return fields[0]

    @property
    def is_pair(self) -> bool:
        """True if the inputs of an example are exactly two keys, such as a user and an item."""
        keys = [len(field.codes) for field in self.inputs.values()]
        return 0 not in keys and sum(keys) == 2

    @property
    def is_text(self) -> bool:
        """True if the only input is a window of bytes, and the target is the next byte after each of these bytes."""
        fields = [*self.inputs.values(), self.target]
        return len(fields) == 2 and all(field.codes == (BYTES,) * math.prod(field.shape) for field in fields)

    def window(self, network: str) -> int:
        """Return the number of bytes in a window of text. If there is none, raise UserError with the network's name."""
        if not self.is_text:
            raise UserError(f"model.name: '{network}' takes text, such as data set python_source; got {self}")
        return math.prod(self.target.shape)

    def __str__(self) -> str:
        """Return the inputs, e.g. "image uint8 [32, 32, 3]"."""
        return ", ".join(f"{name} {field.dtype} {list(field.shape)}" for name, field in self.inputs.items())


# The objectives: what a network is trained for, with loss and metric of its outputs.
#
# The TensorFlow part of each objective is a subclass of `ps_cluster.models.heads.ObjectiveHead`.

SMOOTHING = "training.label_smoothing"
IN_DEVIATIONS = "targets in standard deviations"
_ROWS = 2**16  # the number of targets that are read at a time


class Objective(Named):
    """An objective: what a network is trained to predict, with loss and metric. Subclass it, and override what differs.

    Attributes:
      name: the name by which data sets choose it.
      has_accuracy: whether the metric is the share of correct predictions, from 0 to 1. Otherwise the metric is an
        error, and smaller values are better.
      has_units: whether networks are trained in standard deviations of the target, and saved in the target's units.
      smooths_labels: whether `training.label_smoothing` can be used.
      weighs_classes: whether `training.class_weights` can be used.
      activation: Keras's name of the activation that turns the outputs of a saved model into predictions.
      interpretation: a description of how the networks of this package scale the targets; "" if they don't.
    """

    has_accuracy = True
    has_units = False
    smooths_labels = True
    weighs_classes = False
    activation = "linear"
    interpretation = ""

    def head(self) -> type[ObjectiveHead]:
        """Return the class that computes loss, metric and predictions."""
        raise NotImplementedError

    def results(self) -> type[Analysis] | None:
        """Return the class that analyses the stored predictions of the test examples, or None if there is none."""
        return None

    @property
    def metric_name(self) -> str:
        """The name of the metric in the files of results: "accuracy" or "error"."""
        return "accuracy" if self.has_accuracy else "error"

    def further_metrics(self, spec: ExampleSpec) -> tuple[str, ...]:
        """Return the names of the metrics that are scored besides the objective's main metric and the loss."""
        return ()

    def pairs_to_find(self, target: np.ndarray, spec: ExampleSpec) -> np.ndarray | None:
        """Return which pairs of a user and an item count as hits if a ranking for the user contains the item, bool [N].

        Return None if the predictions of this objective can't rank items. `target`: the targets of N pairs, [N, ...].
        """
        return None

    def check_target(self, target: np.ndarray, spec: ExampleSpec) -> None:
        """Raise ValueError, with a short reason, if the targets of a split can't be trained on."""

    def check_held_out(self, target: np.ndarray, held_out: np.ndarray, spec: ExampleSpec) -> None:
        """Raise ValueError, with a short reason, if held-out targets are not representative, e.g. if data is sorted."""

    def groups(self, target: np.ndarray, spec: ExampleSpec) -> Iterator[tuple[str, np.ndarray]]:
        """Group examples with similar targets. Yield each group's name, and the indices of its examples, int64 [M].

        `target`: the targets of the examples, [N, ...].
        """
        yield "all", np.arange(len(target))

    def named_target(self, target: np.ndarray, spec: ExampleSpec) -> str:
        """Return the target of an example as text."""
        return ", ".join(number_text(value) for value in np.ravel(target))

    def named_prediction(self, prediction: np.ndarray, spec: ExampleSpec) -> str:
        """Return a prediction, [outputs], as text, like `named_target`."""
        return self.named_target(prediction, spec)

    def described(self, outputs: int) -> str:
        """Describe what the network has to predict."""
        return f"{self.name} with {outputs} outputs"

    def output_counts(self, spec: ExampleSpec) -> tuple[int, ...]:
        """Return the numbers of outputs that a network may have, the usual number first."""
        return (spec.outputs,)

    def decisions(self, predictions: np.ndarray) -> np.ndarray:
        """Return the decisions, e.g. classes, [N] or [N, outputs], that follow from `predictions`, [N, outputs]."""
        return predictions

    def metrics(self, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Return the metric of each prediction, [N], from predictions [N, outputs], in numpy."""
        raise NotImplementedError

    def guess(self, target: np.ndarray, spec: ExampleSpec) -> float | None:
        """Return the metric of a prediction that ignores the inputs, on the test targets `target`; None if unknown."""
        return None

    def check(self, config: RunConfig, spec: ExampleSpec) -> None:
        """Raise ValueError, with the setting and its value, for settings that do not fit the examples."""
        weights = config.training.class_weights
        if weights and not self.weighs_classes:
            raise ValueError(f"training.class_weights: got {weights}: only a classification uses them: leave them out")
        if weights and spec.others:
            raise ValueError(
                f"training.class_weights: got {weights}: the data has several targets: weigh the examples instead, "
                "e.g. by an array weight_train"
            )
        class_weights(weights, spec.classes)
        k = config.evaluation.recall_at
        if k is not None and (not spec.is_pair or spec.others or self.pairs_to_find(np.zeros(0), spec) is None):
            raise ValueError(
                f"evaluation.recall_at: got {k}: a ranking needs examples that are pairs of a user and an item, with a "
                "target that is one number or one of two classes: leave this setting out"
            )
        smoothing = config.training.label_smoothing
        if smoothing and not self.smooths_labels:
            raise ValueError(f"{SMOOTHING}: got {smoothing}: objective {self.name} has no labels: leave it out")


class Classification(Objective):
    """The objective to predict the class of each example. The target is the number of the class, counted from 0."""

    name = "classification"
    weighs_classes = True
    activation = "softmax"

    def head(self) -> type[ObjectiveHead]:
        from ps_cluster.models.heads import ClassificationHead

        return ClassificationHead

    def results(self) -> type[Analysis]:
        from ps_cluster.report.class_results import ClassResults  # imports matplotlib

        return ClassResults

    def further_metrics(self, spec: ExampleSpec) -> tuple[str, ...]:
        """Return the names of log loss and F1; for two classes, also of the area under the second class's ROC curve."""
        return ("auc", "log_loss", "f1") if len(spec.classes) == 2 else ("log_loss", "f1")

    def pairs_to_find(self, target: np.ndarray, spec: ExampleSpec) -> np.ndarray | None:
        """Return which pairs of a user and an item have the second of two classes, e.g. "clicked", as bool [N].

        A ranking for the user should contain the items of these pairs. Return None if there are more classes.
        """
        return target == 1 if len(spec.classes) == 2 else None

    def check_target(self, target: np.ndarray, spec: ExampleSpec) -> None:
        if spec.target.shape or target.dtype.kind not in "iu":
            raise ValueError(f"labels are {target.dtype} {list(spec.target.shape)}, not one whole number each")
        lowest, highest = int(target.min()), int(target.max())
        if lowest < 0 or highest >= len(spec.classes):
            raise ValueError(
                f"a label is {lowest if lowest < 0 else highest}, but the {len(spec.classes)} classes are numbered "
                "from 0"
            )

    def groups(self, target: np.ndarray, spec: ExampleSpec) -> Iterator[tuple[str, np.ndarray]]:
        ends = np.cumsum(np.bincount(target, minlength=len(spec.classes)))
        yield from zip(spec.classes, np.split(np.argsort(target, kind="stable"), ends[:-1]))

    def described(self, outputs: int) -> str:
        return f"{outputs:,} classes"

    def output_counts(self, spec: ExampleSpec) -> tuple[int, ...]:
        """Return the allowed numbers of outputs: the number of classes, and for two classes also 1."""
        return (2, 1) if spec.outputs == 2 else (spec.outputs,)

    def named_target(self, target: np.ndarray, spec: ExampleSpec) -> str:
        return spec.classes[int(target)]

    def named_prediction(self, prediction: np.ndarray, spec: ExampleSpec) -> str:
        return spec.classes[int(np.argmax(prediction))] if np.isfinite(prediction).all() else "not a number"

    def decisions(self, predictions: np.ndarray) -> np.ndarray:
        """Return the most probable class, [N]."""
        labels: np.ndarray = np.argmax(predictions, axis=1)
        return labels

    def metrics(self, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        right: np.ndarray = self.decisions(predictions) == target
        return right

    def guess(self, target: np.ndarray, spec: ExampleSpec) -> float | None:
        """Return the share of the most frequent class: the accuracy if this class is predicted for all examples."""
        if not spec.classes:
            return None
        counts = sum(np.bincount(part, minlength=len(spec.classes)) for part in _parts(target, np.int64))
        return float(np.max(counts) / len(target))

    def check_held_out(self, target: np.ndarray, held_out: np.ndarray, spec: ExampleSpec) -> None:
        """Refuse held-out targets that lack a class, if a random choice would lack it with a probability below 1e-6."""
        counts, of_part = (np.bincount(labels, minlength=len(spec.classes)) for labels in (target, held_out))
        missing = np.flatnonzero((counts > 0) & (of_part == 0))
        share = counts[missing].sum() / len(target)
        if share and len(held_out) * math.log1p(-min(share, 1 - 1e-12)) < math.log(1e-6):
            raise ValueError(f"has no example of class '{spec.classes[missing[0]]}': the data seems sorted: shuffle it")


class MultiLabel(Objective):
    """The objective to predict any number of labels for each example. The target is 0 or 1 for each label."""

    name = "multi-label"
    activation = "sigmoid"

    def head(self) -> type[ObjectiveHead]:
        from ps_cluster.models.heads import MultiLabelHead

        return MultiLabelHead

    def results(self) -> type[Analysis]:
        from ps_cluster.report.label_results import LabelResults  # imports matplotlib

        return LabelResults

    def further_metrics(self, spec: ExampleSpec) -> tuple[str, ...]:
        """Return the names of the area under the ROC curve and of F1. Both are means over the labels."""
        return ("auc", "f1")

    def check_target(self, target: np.ndarray, spec: ExampleSpec) -> None:
        if spec.target.shape != (len(spec.classes),):
            raise ValueError(f"targets have shape {list(spec.target.shape)}, but there are {len(spec.classes)} labels")
        if not np.isin(target, (0, 1)).all():
            raise ValueError("a target is neither 0 nor 1")

    def groups(self, target: np.ndarray, spec: ExampleSpec) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the examples of each label. An example may have several labels."""
        for index, label in enumerate(spec.classes):
            yield label, np.flatnonzero(target[:, index])

    def described(self, outputs: int) -> str:
        return f"{outputs:,} labels, several at once"

    def named_target(self, target: np.ndarray, spec: ExampleSpec) -> str:
        """Return the labels whose value is above 1/2."""
        return ", ".join(label for label, share in zip(spec.classes, target) if share > 0.5) or "none"

    def decisions(self, predictions: np.ndarray) -> np.ndarray:
        """Return which labels are predicted for each example (prediction above 1/2), bool [N, labels]."""
        return predictions > 0.5

    def metrics(self, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        shares: np.ndarray = (self.decisions(predictions) == (target > 0.5)).mean(1)
        return shares

    def guess(self, target: np.ndarray, spec: ExampleSpec) -> float:
        """Return the accuracy if each label is predicted for all examples or for none, whichever is more accurate."""
        share = np.count_nonzero(target, axis=0) / len(target)
        return float(np.maximum(share, 1 - share).mean())


class Regression(Objective):
    """The objective to predict one or several numbers for each example. The target is floating-point."""

    name = "regression"
    has_accuracy = False
    has_units = True
    interpretation = IN_DEVIATIONS
    smooths_labels = False

    def head(self) -> type[ObjectiveHead]:
        from ps_cluster.models.heads import RegressionHead

        return RegressionHead

    def results(self) -> type[Analysis]:
        from ps_cluster.report.value_results import ValueResults  # imports matplotlib

        return ValueResults

    def further_metrics(self, spec: ExampleSpec) -> tuple[str, ...]:
        """Return the names of the root mean squared error and of R²."""
        return ("rmse", "r2")

    def pairs_to_find(self, target: np.ndarray, spec: ExampleSpec) -> np.ndarray | None:
        """Return True for all pairs: a ranking should find every item that a user has rated, with any rating."""
        return np.ones(len(target), bool) if spec.outputs == 1 else None

    def check_target(self, target: np.ndarray, spec: ExampleSpec) -> None:
        if target.dtype.kind != "f" or len(spec.target.shape) > 1:
            raise ValueError(
                f"targets are {target.dtype} {list(spec.target.shape)}, but each has to be one number or a row of "
                "numbers"
            )
        if spec.classes:
            raise ValueError(f"a regression has no classes, but names of {len(spec.classes)} classes are given")
        if not np.isfinite(target).all():
            raise ValueError("a target is not a finite number")

    def groups(self, target: np.ndarray, spec: ExampleSpec) -> Iterator[tuple[str, np.ndarray]]:
        """Group the examples by the first number of their target, in eight ranges around the mean.

        The inner six ranges are half a standard deviation wide. The outer two are open.
        """
        first = target.reshape(len(target), -1)[:, 0]
        mean, std = (float(known[0]) if known else 0.0 for known in (spec.target.mean, spec.target.std))
        edges = mean + std * np.arange(-1.5, 2, 0.5)
        texts = [f"{edge:.3g}" for edge in edges]
        middle = (f"{low} to {high}" for low, high in itertools.pairwise(texts))
        which = np.searchsorted(edges, first, side="right")
        for index, name in enumerate((f"below {texts[0]}", *middle, f"{texts[-1]} and above")):
            yield name, np.flatnonzero(which == index)

    def described(self, outputs: int) -> str:
        return f"regression of {outputs:,} number{'s' * (outputs > 1)}"

    def metrics(self, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        errors: np.ndarray = np.abs(predictions - target.reshape(predictions.shape)).mean(1)
        return errors

    def guess(self, target: np.ndarray, spec: ExampleSpec) -> float | None:
        """Return the mean absolute error if the mean of the training targets is predicted for every example."""
        if not spec.target.mean:
            return None
        sums = (float(np.abs(part - np.array(spec.target.mean)).sum()) for part in _parts(target, np.float64))
        found = sum(sums) / target.size
        return found if math.isfinite(found) else None


class NextByte(Objective):
    """The objective to predict each byte of a text from the bytes before it. Target: uint8 [window], the next bytes.

    A network returns `BYTES` scores for each position, concatenated. The error is in bits per byte: the mean over all
    positions of -log2(p), where p is the predicted probability of the correct byte. Equal probabilities for all bytes
    give an error of 8.
    """

    name = "next-byte"
    has_accuracy = False
    smooths_labels = False

    def head(self) -> type[ObjectiveHead]:
        from ps_cluster.models.heads import NextByteHead

        return NextByteHead

    def check_target(self, target: np.ndarray, spec: ExampleSpec) -> None:
        if target.dtype != np.uint8 or spec.target.codes != (BYTES,) * math.prod(spec.target.shape):
            raise ValueError(
                f"targets are {target.dtype} {list(spec.target.shape)}, but each has to be a row of bytes: uint8, with "
                f"{BYTES} codes for each byte in `ArrayField.codes`"
            )

    def named_target(self, target: np.ndarray, spec: ExampleSpec) -> str:
        return np.asarray(target, np.uint8).tobytes().decode("utf-8", "replace")

    def named_prediction(self, prediction: np.ndarray, spec: ExampleSpec) -> str:
        """Return the most probable byte of each position, as text."""
        return self.named_target(self.decisions(prediction[None])[0], spec)

    def described(self, outputs: int) -> str:
        return f"the next byte at {outputs // BYTES:,} positions; the error is in bits per byte"

    def decisions(self, predictions: np.ndarray) -> np.ndarray:
        """Return the most probable bytes, [N, window]."""
        found: np.ndarray = predictions.reshape(len(predictions), -1, BYTES).argmax(-1)
        return found

    def metrics(self, target: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Return the error of each example in bits per byte, [N], from predictions that are scores."""
        scores = predictions.reshape(*target.shape, BYTES).astype(np.float64)
        scores -= scores.max(-1, keepdims=True)
        logarithms = np.take_along_axis(scores, target[..., None].astype(np.int64), -1)[..., 0]
        bits: np.ndarray = (np.log(np.exp(scores).sum(-1)) - logarithms).mean(1) / math.log(2)
        return bits

    def guess(self, target: np.ndarray, spec: ExampleSpec) -> float:
        """Return the entropy of the bytes.

        This is the lowest error that is possible if the prediction depends only on how frequent each byte is.
        """
        counts = np.sum([np.bincount(part.ravel(), minlength=BYTES) for part in _parts(target, np.int64)], axis=0)
        shares = counts[counts > 0] / target.size
        return float(-(shares * np.log2(shares)).sum())


def _parts(target: np.ndarray, dtype: type[np.generic]) -> Iterator[np.ndarray]:
    """Yield `_ROWS` targets at a time, because `target` may be a memory-mapped file that is larger than memory."""
    for first in range(0, len(target), _ROWS):
        yield np.asarray(target[first : first + _ROWS], dtype)


def class_weights(given: Mapping[str, float], classes: Sequence[str]) -> np.ndarray:
    """Return the weight of each class, float32 [classes]: 1 for classes that are not named in `given`.

    Args:
      given: the name of a class, or its label as text → the weight of the class.
    Raises:
      ValueError: a class does not exist, or is named twice.
    """
    weights = np.ones(len(classes), np.float32)
    named: set[int] = set()
    for name, weight in given.items():
        label = classes.index(name) if name in classes else int(name) if name.isdecimal() else -1
        if not 0 <= label < len(classes) or label in named:
            known = ", ".join(classes[:10]) + ", …" * (len(classes) > 10)
            what = (
                "named twice"
                if label in named
                else f"neither the name of a class ({known}) nor the number of a class, counted from 0"
            )
            hint = "" if label in named else did_you_mean(name, classes)
            raise ValueError(f"training.class_weights: got '{name}': {hint}it is {what}")
        named.add(label)
        weights[label] = weight
    return weights


OBJECTIVES: Registry[Objective] = Registry(
    "objective", Objective, lambda: sys.modules[__name__], "ps_cluster.objectives"
)

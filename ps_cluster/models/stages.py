"""Cut a network into stages: parts of a chain, each of which takes the single output of the part before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import keras

from ps_cluster.models.flat import FlatNetwork, layers_of, statistics_of
from ps_cluster.models.pure import seeds_of


@dataclass(frozen=True)
class Block:
    """Layers between two neighbouring places where a network can be cut. They stay together.

    Attributes:
      layers: their names, in order.
      weights: how many trainable numbers they have.
      sends: how many numbers they return for each example.
      output: the Keras tensor, or the structure of such, that they return.
    """

    layers: tuple[str, ...]
    weights: int
    sends: int
    output: Any


def blocks_of(model: keras.Model) -> list[Block]:
    """Return the blocks of a network, in order.

    A network can be cut where one tensor of floats crosses, and where no layer with variables is used on both sides.

    Raises:
      ValueError: its layers can't be told apart, or would not do the same on both sides of a cut.
    """
    graph = graph_of(model)
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            raise ValueError(f"layer '{layer.name}' makes a mask, which would not cross from worker to worker")
    nodes = _in_order(graph)
    ends = [end for end in range(1, len(nodes)) if _can_be_cut(graph, nodes, end)]
    blocks = []
    for begin, end in pairwise([0, *ends, len(nodes)]):
        layers = [node.operation for node in nodes[begin:end] if not node.is_input]
        output = graph._outputs_struct if end == len(nodes) else _crossing(graph, nodes, end)[0]
        weights = sum(
            prod(v.shape) for layer in dict.fromkeys(layers) for v in getattr(layer, "trainable_variables", ())
        )
        sends = sum(prod(size or 1 for size in tensor.shape[1:]) for tensor in keras.tree.flatten(output))
        blocks.append(Block(tuple(dict.fromkeys(layer.name for layer in layers)), weights, sends, output))
    return blocks


def balanced(blocks: Sequence[Block], parts: int) -> list[int]:
    """Return the first block of each part: of all ways to cut, the one with the least sum of squared weights.

    Of several such ways it takes the one that sends least. Each part has weights.

    Args:
      parts: at most as many as there are blocks with weights.
    """
    until = [0, *accumulate(block.weights for block in blocks)]
    # The end of the parts so far → the cost of the best way there, and its first blocks.
    best: dict[int, tuple[tuple[int, int], list[int]]] = {0: ((0, 0), [])}
    for _ in range(parts):
        longer: dict[int, tuple[tuple[int, int], list[int]]] = {}
        for begin, ((squares, sent), firsts) in best.items():
            for end in range(begin + 1, len(until)):
                size = until[end] - until[begin]
                cost = squares + size**2, sent + blocks[end - 1].sends
                if size and (end not in longer or cost < longer[end][0]):
                    longer[end] = cost, [*firsts, begin]
        best = longer
    return best[len(blocks)][1]


def stages_of(model: keras.Model, blocks: Sequence[Block], firsts: Sequence[int]) -> list[FlatNetwork]:
    """Return the stages that begin at these blocks. They share the model's layers, and so its variables.

    Raises:
      ValueError: their variables, in order, are not those of the model.
    """
    graph = graph_of(model)
    ends = [graph._inputs_struct, *(blocks[first - 1].output for first in firsts[1:]), graph._outputs_struct]
    stages: list[FlatNetwork] = []
    seeds = 0
    for index, (before, after) in enumerate(pairwise(ends), start=1):
        part = keras.Model(before, after, name=f"{model.name}_stage_{index}")
        stages.append(FlatNetwork(part, seeds_before=seeds, to_float32=index == len(firsts)))
        seeds += len(seeds_of(part))
    _check_variables(model, [stage.model for stage in stages])
    return stages


def _check_variables(model: keras.Model, parts: Sequence[keras.Model]) -> None:
    """Raise ValueError where the flat vectors of the parts, end to end, would not be those of the model."""
    for of in (lambda one: one.trainable_variables, statistics_of, seeds_of):
        own, cut = [v.path for v in of(model)], [v.path for part in parts for v in of(part)]
        if own != cut:
            first = next((path for path, other in zip(own, cut) if path != other), model.name)
            raise ValueError(f"mode layers can't cut it: in its order of variables, '{first}' is of another part")


def graph_of(model: keras.Model) -> Any:
    """Return the Keras graph of a network: itself, or what a Sequential has made of its layers.

    Raises:
      ValueError: it is a class of a user's own.
    """
    by_layers_alone = type(model).__module__.startswith("keras.")
    graph: Any = getattr(model, "_functional", None) if isinstance(model, keras.Sequential) else model
    if not by_layers_alone or not hasattr(graph, "_nodes_by_depth"):
        raise ValueError(
            "only a keras.Sequential, or a keras.Model(inputs, outputs), can be cut; this one is a class of its own "
            f"({type(model).__name__}), and only its `call` knows its layers"
        )
    return graph


def _in_order(graph: Any) -> list[Any]:
    """Return the nodes (calls of layers) of a Keras graph: inputs first, then each after those that it needs."""
    by_depth = graph._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return sorted(nodes, key=lambda node: not node.is_input)


def _can_be_cut(graph: Any, nodes: Sequence[Any], end: int) -> bool:
    before, after = ({id(node.operation) for node in part if _variables(node)} for part in (nodes[:end], nodes[end:]))
    crossing = _crossing(graph, nodes, end)
    if len(crossing) != 1 or nodes[end - 1].is_input or before & after:
        return False
    return "float" in crossing[0].dtype


def _variables(node: Any) -> Sequence[keras.Variable]:
    variables: Sequence[keras.Variable] = getattr(node.operation, "variables", ())
    return variables


def _crossing(graph: Any, nodes: Sequence[Any], end: int) -> list[Any]:
    """Return the tensors that the nodes before `end` make, and that later ones need or the network returns."""
    needed = {id(tensor) for tensor in _needed(graph, nodes[end:])}
    return [tensor for node in nodes[:end] for tensor in node.output_tensors if id(tensor) in needed]


def _needed(graph: Any, nodes: Sequence[Any]) -> Iterator[Any]:
    yield from keras.tree.flatten(graph._outputs_struct)
    for node in nodes:
        yield from node.input_tensors

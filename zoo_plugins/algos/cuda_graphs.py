"""Functions of tensors whose operations a GPU runs at one command, instead of one after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import torch as th
from torch.utils._pytree import tree_map_only

# Calls before the recording, in which libraries choose their algorithms and take their memory
WARM_UP = 3


def record(
    function: Callable[..., Any], inputs: Sequence[Any], generators: Sequence[th.Generator]
) -> tuple[Callable[[], None], Any]:
    """
    Record a function as a CUDA graph. Nothing is computed.

    :param function: The function
    :param inputs: Its arguments, the memory of which belongs to the graph from now on
    :param generators: Random generators that it uses, besides that of the device
    :return: what computes, and the memory of the results
    """
    graph = th.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with th.cuda.graph(graph):
        outputs = function(*inputs)
    return graph.replay, outputs


class Graphed:
    """
    A function as a CUDA graph.

    The first calls run it as it is, and so do their work: nothing is computed for the recording alone. What the function
    keeps from call to call must stay in one place in memory, and it must not wait for the device.

    :param function: A function of tensors, or dicts of tensors, of constant shapes
    :param generators: Random generators that it uses, besides that of the device
    """

    def __init__(self, function: Callable[..., Any], generators: Sequence[th.Generator] = ()):
        self.function = function
        self.generators = generators
        self.n_calls = 0

    def __call__(self, *inputs: Any) -> Any:
        """
        Call the function.

        :param inputs: Its arguments, which are copied
        :return: its results, in memory of their own
        """
        self.n_calls += 1
        if self.n_calls <= WARM_UP:
            return self._warm_up(inputs)
        if self.n_calls == WARM_UP + 1:
            self.inputs = _cloned(inputs)
            self.replay, self.outputs = record(self.function, self.inputs, self.generators)
        for kept, given in zip(self.inputs, inputs, strict=True):
            for key in kept if isinstance(kept, dict) else ():
                kept[key].copy_(given[key])
            if isinstance(kept, th.Tensor):
                kept.copy_(given)
        self.replay()
        return _cloned(self.outputs)

    def _warm_up(self, inputs: Sequence[Any]) -> Any:
        if not th.cuda.is_available():
            return self.function(*inputs)
        # On another stream, as recordings are
        stream = th.cuda.Stream()
        stream.wait_stream(th.cuda.current_stream())
        with th.cuda.stream(stream):
            outputs = self.function(*inputs)
        th.cuda.current_stream().wait_stream(stream)
        return _cloned(outputs)


def _cloned(tree: Any) -> Any:
    return tree_map_only(th.Tensor, th.clone, tree)

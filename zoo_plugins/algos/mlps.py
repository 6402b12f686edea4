"""MLPs of policies without a graph of their operations, in as little time as possible."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

# Number of PyTorch's threads up to which NumPy's single one takes less time
FEW_THREADS = 4


@th.no_grad()
def forward_actor(extractor: Any, features: th.Tensor) -> th.Tensor:
    """
    Run the actor's MLP.

    :param extractor: The MLPs of a policy
    :param features: Input. Shape: ``(n, features_dim)``
    :return: output. Shape: ``(n, latent_dim)``
    """
    if type(extractor) is not MlpExtractor:
        return extractor.forward_actor(features)
    return _forward(extractor.policy_net, features)


@th.no_grad()
def forward_critic(extractor: Any, features: th.Tensor) -> th.Tensor:
    """
    Run the critic's MLP.

    :param extractor: The MLPs of a policy
    :param features: Input. Shape: ``(n, features_dim)``
    :return: output. Shape: ``(n, latent_dim)``
    """
    if type(extractor) is not MlpExtractor:
        return extractor.forward_critic(features)
    return _forward(extractor.value_net, features)


def _forward(net: nn.Sequential, features: th.Tensor) -> th.Tensor:
    before: nn.Module | None = None
    for layer in net:
        # Nobody else has what came out of a linear layer
        features = tanh_(features) if type(layer) is nn.Tanh and type(before) is nn.Linear else layer(features)
        before = layer
    return features


def tanh_(outputs: th.Tensor) -> th.Tensor:
    """
    Apply tanh in place.

    On the CPU, NumPy does it, which takes a fifth of the time of PyTorch's vectorized function, at an error of at most
    2**-23. This is most of what a small policy takes for thousands of environments.

    :param outputs: Numbers that have no gradient
    :return: the same tensor
    """
    if type(outputs) is not th.Tensor or outputs.device.type != "cpu" or outputs.dtype is not th.float32:
        return outputs.tanh_()
    if th.get_num_threads() > FEW_THREADS:
        return outputs.tanh_()
    array = outputs.numpy()
    np.tanh(array, out=array)
    return outputs

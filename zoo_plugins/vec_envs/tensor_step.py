"""What environments that are stepped together, on a device, give and take: tensors."""

from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch as th

# Of a Dict space: by key. Shape of each: (n_envs, *obs_shape)
TensorObs: TypeAlias = th.Tensor | dict[str, th.Tensor]


class TensorStep(NamedTuple):
    """
    One step of all environments, on the device where they are.

    Nobody else keeps the tensors, or writes into them: who gets a step may do with it what they want. None of them shares
    memory with the state of an environment.

    :param obs: Observations: after an episode has ended, the first of the next one. Shape: ``(n_envs, *obs_shape)``
    :param rewards: Rewards, float32. Shape: ``(n_envs,)``
    :param terminated: Whether the episode ended in a terminal state, bool. Shape: ``(n_envs,)``
    :param truncated: Whether it ended otherwise, and only then: never together with ``terminated``, bool. Shape: ``(n_envs,)``
    :param final_obs: The last observation of the episode, where one has ended; anything elsewhere. Same shapes as ``obs``.
        ``None`` if the simulator does not tell it: values of final observations can't be used then
    :param episode_returns: Sum of unnormalized rewards of the episode, where one has ended; anything elsewhere, float32.
        Shape: ``(n_envs,)``
    :param episode_lengths: Steps of the episode, where one has ended; anything elsewhere, int32. Shape: ``(n_envs,)``
    :param valid: Where there was a step at all, bool, shape ``(n_envs,)``; ``None``: everywhere. Simulators that spend a call
        on resetting an environment whose episode has ended (``AutoresetMode.NEXT_STEP`` of gymnasium) ignore its action: that
        is no transition, must not be learned from, and has reward 0 and neither end here
    :param success: Whether the simulator calls the step a success, 1 or 0, and NaN where it does not tell, float32, shape
        ``(n_envs,)``; ``None``: it tells nothing
    """

    obs: TensorObs
    rewards: th.Tensor
    terminated: th.Tensor
    truncated: th.Tensor
    final_obs: TensorObs | None
    episode_returns: th.Tensor
    episode_lengths: th.Tensor
    valid: th.Tensor | None = None
    success: th.Tensor | None = None


@runtime_checkable
class StepsTensors(Protocol):
    """
    The face of a VecEnv that algorithms on tensors see. Wrappers of such VecEnvs have it too.

    No method waits for the device (on CUDA: no synchronization).
    """

    device: th.device
    num_envs: int

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: first observations. Shape: ``(n_envs, *obs_shape)``
        """
        ...

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device, of the action space's type. Shape: ``(n_envs, *action_shape)``
        :return: what happened
        """
        ...

"""What ended during a rollout, kept on the device until its end, and fetched at once."""

import math
import time
from typing import Any, NamedTuple

import torch as th

from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep

# Last observations of all steps are kept until the end of a rollout, or until they take so much memory
KEPT_BYTES = 2**28


class Truncated(NamedTuple):
    """
    Episodes that were truncated.

    :param positions: Where their last steps are among all steps, those of one time after the other. Shape: ``(n,)``
    :param final_obs: Their last observations. Shape: ``(n, *obs_shape)``
    """

    positions: th.Tensor
    final_obs: TensorObs


class RolloutEnds:
    """
    Collects the ends of episodes, and waits for the device once, in :meth:`read`.

    How many episodes were truncated is not known before, so that the last observations of all steps are kept, by reference.
    Where they are large (images), they are looked through as soon as they take :data:`KEPT_BYTES`, at the price of another
    wait.

    :param window: Number of last episodes whose return and length are fetched
    """

    def __init__(self, window: int):
        self.window = window
        self.steps: list[TensorStep] = []
        self.dones: list[th.Tensor] = []
        self.found: list[Truncated] = []
        # Steps whose last observations were not looked at yet: their number among all steps
        self.pending: list[tuple[int, TensorObs]] = []
        self.pending_bytes = 0

    def add(self, step: TensorStep, dones: th.Tensor) -> None:
        """
        Add a step.

        :param step: What happened; kept, not copied
        :param dones: Where an episode has ended. Shape: ``(n_envs,)``
        """
        if step.final_obs is not None:
            self.pending.append((len(self.steps), step.final_obs))
            self.pending_bytes += _count_bytes(step.final_obs)
        self.steps.append(step._replace(obs={}, final_obs=None))
        self.dones.append(dones)
        if self.pending_bytes > KEPT_BYTES:
            truncated = th.stack([self.steps[i].truncated for i, _ in self.pending])
            self._look_through(truncated.sum(dim=1).cpu().tolist())

    def read(self, start_time: float) -> list[dict[str, Any]]:
        """
        Fetch all that the host needs to know. This is where it waits for the device.

        :param start_time: When training started, in nanoseconds
        :return: infos of the last episodes that ended: ``episode``, as by :class:`~stable_baselines3.common.monitor.Monitor`,
            and ``is_success`` if the simulator tells it
        """
        dones, truncated, returns, lengths = (
            th.stack(tensors)
            for tensors in (
                self.dones,
                [step.truncated for step in self.steps],
                [step.episode_returns for step in self.steps],
                [step.episode_lengths for step in self.steps],
            )
        )
        # From the last one back, -1 if there are not so many
        positions = dones.flatten().flip(0).nonzero_static(size=self.window).squeeze(1)
        ended = dones.numel() - 1 - positions.clamp(min=0)
        numbers = th.cat(
            [
                truncated.sum(dim=1).float(),
                (positions >= 0).float(),
                returns.flatten()[ended].float(),
                lengths.flatten()[ended].float(),
                self._successes().flatten()[ended],
            ]
        )
        read = numbers.cpu().tolist()
        counts, episodes = read[: len(self.steps)], read[len(self.steps) :]
        self._look_through([int(counts[i]) for i, _ in self.pending])
        elapsed = round((time.time_ns() - start_time) / 1e9, 6)
        infos: list[dict[str, Any]] = []
        for exists, r, n, success in zip(*(episodes[i * self.window : (i + 1) * self.window] for i in range(4)), strict=True):
            if exists:
                told = {} if math.isnan(success) else {"is_success": success}
                infos.append({"episode": {"r": r, "l": int(n), "t": elapsed}, **told})
        return infos[::-1]

    def _successes(self) -> th.Tensor:
        """
        Collect successes.

        :return: those of all steps, NaN where none was told. Shape: ``(n_steps, n_envs)``
        """
        unknown = th.full_like(self.dones[0], th.nan, dtype=th.float32)
        return th.stack([unknown if step.success is None else step.success for step in self.steps])

    def _look_through(self, counts: list[int]) -> None:
        """
        Take the last observations of truncated episodes from all that were kept.

        :param counts: Number of truncated episodes of each pending step
        """
        for (i, final_obs), count in zip(self.pending, counts, strict=True):
            if count > 0:
                truncated = self.steps[i].truncated
                envs = truncated.nonzero_static(size=count).squeeze(1)
                self.found.append(Truncated(envs + i * len(truncated), _select(final_obs, envs)))
        self.pending, self.pending_bytes = [], 0

    def truncated(self) -> Truncated | None:
        """
        Get the truncated episodes, after :meth:`read`.

        :return: those of which the last observation is known, ``None`` if there are none
        """
        if not self.found:
            return None
        positions, final_obs = zip(*self.found, strict=True)
        return Truncated(th.cat(positions), _concatenate(list(final_obs)))


def _count_bytes(obs: TensorObs) -> int:
    return sum(tensor.nbytes for tensor in obs.values()) if isinstance(obs, dict) else obs.nbytes


def _select(obs: TensorObs, rows: th.Tensor) -> TensorObs:
    if isinstance(obs, dict):
        return {key: tensor.index_select(0, rows) for key, tensor in obs.items()}
    return obs.index_select(0, rows)


def _concatenate(observations: list[Any]) -> TensorObs:
    if isinstance(observations[0], dict):
        return {key: th.cat([obs[key] for obs in observations]) for key in observations[0]}
    return th.cat(observations)

"""One copy of an environment of tensors, as gymnasium knows environments."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th

from zoo_plugins.envs.tensor_env import TensorEnv


class SingleEnv(gym.Env[np.ndarray, Any]):
    """
    An environment with NumPy arrays, and without a time limit and automatic resets, over one copy of a :class:`TensorEnv`.

    :param render_mode: "human", "rgb_array" or ``None``
    :param kwargs: Keyword arguments of the :class:`TensorEnv`
    """

    batch_class: ClassVar[type[TensorEnv]]
    metadata = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012, of gymnasium's type

    def __init__(self, render_mode: str | None = None, **kwargs: Any):
        self.render_mode = render_mode
        self.batch: TensorEnv = self.batch_class(num_envs=1, max_episode_steps=None, render_mode=render_mode, **kwargs)
        self.metadata = {**self.metadata, "render_fps": self.batch.metadata["render_fps"]}
        self.observation_space = self.batch.single_observation_space
        self.action_space = self.batch.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """
        Start an episode.

        :param seed: Seed of the random generators, ``None`` to go on with them
        :param options: What gymnasium's environment understands
        :return: first observation, and no info
        """
        super().reset(seed=seed)
        obs, info = self.batch.reset(seed=seed, options=options)
        self._show()
        return obs[0].cpu().numpy(), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """
        Make a step.

        :param action: The action
        :return: observation, reward, whether the state is terminal, not truncated, and no info
        """
        rewards, terminated = self.batch.move(th.as_tensor(np.asarray(action)[None], device=self.batch.device))
        self._show()
        return self.batch.observe()[0].cpu().numpy(), rewards.item(), bool(terminated), False, {}

    def render(self) -> Any:
        """
        Make an image.

        :return: the image, ``None`` if it is shown in a window. Shape: ``(height, width, 3)``
        """
        images = self.batch.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the window."""
        self.batch.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

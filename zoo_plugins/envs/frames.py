"""Images of environments, drawn by gymnasium's environments."""

from typing import Any

import gymnasium as gym
import numpy as np


class Frames:
    """
    Draws states of one of gymnasium's environments.

    :param env_id: Id of the environment
    :param render_mode: "rgb_array" or "human"
    """

    def __init__(self, env_id: str, render_mode: str):
        if render_mode not in ("rgb_array", "human"):
            raise ValueError(f"render_mode: {render_mode!r} is none of rgb_array, human")
        self._env: Any = gym.make(env_id, render_mode=render_mode, disable_env_checker=True).unwrapped

    @staticmethod
    def fps(env_id: str) -> int:
        """
        Tell how many images are a second.

        :param env_id: Id of the environment
        :return: images per second
        """
        entry_point: Any = gym.envs.registration.load_env_creator(str(gym.spec(env_id).entry_point))
        return int(entry_point.metadata["render_fps"])

    def draw(self, state: np.ndarray, action: float | None) -> Any:
        """
        Draw a state.

        :param state: The state, in the order of gymnasium's environment
        :param action: The last action, for environments that show it
        :return: an image of shape ``(height, width, 3)``, or ``None`` after showing it in a window
        """
        self._env.state = state
        self._env.last_u = action
        return self._env.render()

    def close(self) -> None:
        """Close the window."""
        self._env.close()

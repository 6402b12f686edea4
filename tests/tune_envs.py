"""An environment for trials of tune, which tests tell what to do by files in a folder."""

import os
import signal
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class OrderedByFiles(gym.Env):
    """
    Does what the files in a folder say, at the fifth step of any episode; episodes have ten steps.

    A file ``kill`` is removed, and the process with it, as soon as another process is there; others
    then wait until there is a new process. ``raise`` stays, and lets each step raise. While there is a file ``wait``, steps
    wait, and ``waiting`` says so. Each process leaves a file ``process-PID``.

    :param folder: The folder
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        process = self.folder / f"process-{os.getpid()}"
        if not process.exists() and (self.folder / "killed").exists():
            (self.folder / "wait").unlink()
        process.touch()
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == 5:
            self._obey()
        return np.full(2, self.t / 10, np.float32), float(action), False, self.t >= 10, {}

    def _obey(self) -> None:
        if (self.folder / "kill").exists():
            (self.folder / "kill").unlink()
            while len(list(self.folder.glob("process-*"))) < 2:
                time.sleep(0.05)
            (self.folder / "wait").touch()
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if (self.folder / "raise").exists():
            raise RuntimeError("the simulator\nis broken")
        while (self.folder / "wait").exists():
            (self.folder / "waiting").touch()
            time.sleep(0.05)


gym.register("Obedient-v0", entry_point=OrderedByFiles, disable_env_checker=True)

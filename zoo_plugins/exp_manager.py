"""The zoo's experiment manager, with classes chosen by name in YAML and mistakes told before any work starts."""

import copy
import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from rl_zoo3 import exp_manager as upstream
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER as HYPERPARAMS_CONVERTER
from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER
from rl_zoo3.utils import ALGOS as ALGOS
from rl_zoo3.utils import StoreDict as StoreDict
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from zoo_plugins import choices, zoo
from zoo_plugins.callbacks import UpdateRatioCallback, restore_gradient_steps
from zoo_plugins.config import Block, UnreadableError, copy_containers, parse_kwargs, read_config
from zoo_plugins.registry import PluginError, did_you_mean
from zoo_plugins.vec_envs.numpy_face import steps_tensors
from zoo_plugins.vec_envs.tensor_twins import with_tensor_wrappers

# What the zoo's sample_her_params suggests
HER_PARAMS = ("n_sampled_goal", "goal_selection_strategy")
# The zoo makes a callback of its own from this name for every trial
UPDATE_RATIO_CALLBACK = f"{UpdateRatioCallback.__module__}.{UpdateRatioCallback.__qualname__}"

# Environments opened by the current trial; trials of one study may run in threads
_trial_envs: ContextVar[list[VecEnv] | None] = ContextVar("_trial_envs", default=None)


class TrialHyperparams(dict[str, Any]):
    """Hyperparameters of which each trial gets its own copy, so that none changes those of the next."""

    def copy(self) -> dict[str, Any]:
        """
        Copy, nested dicts and lists included.

        :return: the copy
        """
        return copy_containers(dict(self))


class PluginExperimentManager(ExperimentManager):
    """
    Experiment manager that knows the plugins.

    It takes the place of :class:`rl_zoo3.exp_manager.ExperimentManager`, whose parameters it has.

    :raises PluginError: from :meth:`setup_experiment`, before any environment or log folder is made, if a hyperparameter
        is wrong, naming its key, its value, its file and what would be valid
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        arguments = inspect.signature(ExperimentManager).bind(*args, **kwargs).arguments
        self._spec = zoo.SPECS.get(self.algo)
        if self._spec is not None and not arguments.get("config"):
            if self._spec.hyperparams is None:
                raise PluginError(f"algorithm {self.algo!r} comes without hyperparameters: pass --conf-file")
            self.config = str(self._spec.hyperparams)
        self._vec_env_is_plugin = False
        self._command_line = dict(self.custom_hyperparams or {})
        self._replay_buffer_kwargs: Any = {}
        self._study: optuna.Study | None = None

    def setup_experiment(self) -> tuple[BaseAlgorithm, dict[str, Any]] | None:
        """
        Read and check the hyperparameters, then create the environment and possibly the model.

        :return: the initialized RL model and the hyperparameters to save, None when optimizing hyperparameters
        """
        if self.optimize_hyperparameters and self.algo not in HYPERPARAMS_SAMPLER:
            raise PluginError(
                f"algorithm {self.algo!r} has no search space for -optimize. Valid: {', '.join(sorted(HYPERPARAMS_SAMPLER))}"
            )
        return super().setup_experiment()

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the block of the environment, overridden by ``--trial-id`` and ``-params``.

        Unlike upstream, it leaves the dict of a ``.py`` file or package as it was, and takes ``--trial-id 0`` for a trial.

        :return: the hyperparameters, and the same, sorted, to be saved
        :raises PluginError: if the file can't be read or has no block for the environment
        """
        block = self._find_block(read_config(self.config))
        self._replay_buffer_kwargs = block.get("replay_buffer_kwargs") or {}
        if self.storage and self.study_name and self.trial_id == 0:
            trial = self.load_trial(self.storage, self.study_name, 0)
            self.custom_hyperparams = {**trial, **(self.custom_hyperparams or {})}

        before = dict(block)
        overruled = choices.overruled_key(block, self._command_line)
        try:
            hyperparams, saved_hyperparams = super().read_hyperparameters()
            if overruled is not None:
                hyperparams.pop(overruled, None)
                saved_hyperparams.pop(overruled, None)
            # For a package, hyperparams is block
            return copy_containers(hyperparams), copy_containers(saved_hyperparams)
        finally:
            block.clear()
            block.update(before)

    def _find_block(self, config: dict[str, Any]) -> dict[str, Any]:
        env_id = self.env_name.gym_id
        fallback = "atari" if self._is_atari else "default"
        key = env_id if env_id in config else fallback
        if key not in config:
            known = [name for name in config if isinstance(name, str)]
            raise PluginError(
                f"{self.config} has hyperparameters neither for {env_id!r} nor {fallback!r}{did_you_mean(env_id, known)}"
            )
        block = config[key]
        if not isinstance(block, dict) or not all(isinstance(name, str) for name in block):
            raise PluginError(f"{key}: {block!r} in {self.config}: expected a map of hyperparameters by name")
        return block

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> tuple[dict[str, Any], Any, Any, Any]:
        """
        Check the hyperparameters and turn names into classes, then let the zoo do its part.

        :param hyperparams: The hyperparameters
        :return: hyperparameters for the constructor, environment wrapper, callbacks and VecEnv wrapper
        :raises PluginError: if one of them is wrong
        """
        block = Block(hyperparams, self.config, overrides=self._command_line)
        algo_class = ALGOS[self.algo]
        choices.check_keys(block, algo_class)
        block.check_numbers()
        update_ratio = choices.choose_update_ratio(block, algo_class)
        vec_env_class, vec_env_kwargs = choices.choose_vec_env(block, self.vec_env_class)
        classes = {
            **choices.choose_policy(block, algo_class, vars(upstream)),
            **choices.choose_buffers(block, vars(upstream)),
        }
        is_her = issubclass(classes.get("replay_buffer_class", object), HerReplayBuffer)
        if issubclass(algo_class, OffPolicyAlgorithm):
            self._add_update_callback(block, update_ratio, is_her)
        if vec_env_class is not self.vec_env_class:
            self.vec_env_class = vec_env_class  # type: ignore[assignment]  # upstream infers a metaclass
            self._vec_env_is_plugin = vec_env_class not in zoo.words("vec_envs").values()
        if hasattr(vec_env_class, "step_tensors"):
            # Where the policy is
            vec_env_kwargs = {"device": self.device, **vec_env_kwargs}
        self.vec_env_kwargs = vec_env_kwargs or self.vec_env_kwargs

        # They may only be added after upstream's part, which takes a policy for a string
        hyperparams, env_wrapper, callbacks, vec_env_wrapper = super()._preprocess_hyperparams(block.values)
        hyperparams.update(classes)
        # Upstream forgets the env_kwargs of the YAML file
        if self._eval_env_kwargs_args is None:
            self.eval_env_kwargs = self.env_kwargs

        if self.optimize_hyperparameters:
            if is_her:
                hyperparams["replay_buffer_kwargs"] = zoo.HerKwargs(hyperparams.get("replay_buffer_kwargs") or {})
            hyperparams = TrialHyperparams(hyperparams)
        return hyperparams, env_wrapper, callbacks, vec_env_wrapper

    def _add_update_callback(self, block: Block, update_ratio: float | None, is_her: bool) -> None:
        follows_n_envs = update_ratio is not None or isinstance(block.values.get("gradient_steps"), str)
        # A search samples texts, and a saved agent may have one, or HER, that the block does not tell of
        if not (follows_n_envs or is_her or self.optimize_hyperparameters or self.continue_training):
            return
        own = block.values.get("callback") or []
        kwargs = {} if update_ratio is None else {"update_ratio": update_ratio}
        # First, so that an UpdateRatioCallback of the user's own has the last word
        block.values["callback"] = [{UPDATE_RATIO_CALLBACK: kwargs}, *(own if isinstance(own, list) else [own])]

    def create_callbacks(self) -> None:
        """Create the callbacks of the zoo's options, in addition to those of the hyperparameters."""
        super().create_callbacks()
        # Upstream's learn() takes the first one for the progress bar, which it closes when training is interrupted
        self.callbacks.sort(key=lambda callback: not isinstance(callback, ProgressBarCallback))

    def learn(self, model: BaseAlgorithm) -> None:
        """
        Train a model.

        :param model: An initialized RL model
        """
        try:
            with self._evaluation_elsewhere():
                super().learn(model)
        finally:
            restore_gradient_steps(model)  # upstream saves the model of a training that was interrupted

    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        # record_video.py reads env_kwargs from args.yml, and never from config.yml
        self.args.env_kwargs = self.env_kwargs or None
        super()._save_config(saved_hyperparams)

    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """
        Create the environment and wrap it if necessary.

        A VecEnv class chosen by a plugin's name serves training; evaluation then runs on a DummyVecEnv, in the same
        wrappers.

        :param n_envs: Number of environments
        :param eval_env: Whether it is an environment used for evaluation or not
        :param no_log: Do not log training when doing hyperparameter optimization
        :return: the vectorized environment, with appropriate wrappers
        """
        manager = self
        if eval_env and self._vec_env_is_plugin:
            # A copy, because trials may create environments in several threads
            manager = copy.copy(self)
            manager.vec_env_class, manager.vec_env_kwargs = DummyVecEnv, {}
        env = super(PluginExperimentManager, manager).create_envs(n_envs, eval_env, no_log)
        if steps_tensors(env.unwrapped):
            env = with_tensor_wrappers(env)
        opened = _trial_envs.get()
        if opened is not None:
            opened.append(env)
        return env

    @contextmanager
    def _evaluation_elsewhere(self) -> Iterator[None]:
        """Let SB3's ``EvalCallback`` not warn that training has the VecEnv of a plugin, and evaluation a DummyVecEnv."""
        if not self._vec_env_is_plugin:
            yield
            return
        pair = rf"<{_full_name(self.vec_env_class)} object .*> != <{_full_name(DummyVecEnv)} object "
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f"Training and eval env are not of the same type{pair}", UserWarning)
            yield

    def load_trial(self, storage: str, study_name: str, trial_id: int | None = None, convert: bool = True) -> dict[str, Any]:
        """
        Load the hyperparameters of a trial.

        :param storage: Storage of the study
        :param study_name: Name of the study
        :param trial_id: Number of the trial, None for the best one
        :param convert: Whether to convert them for the algorithm
        :return: hyperparameters; HER's are with the other arguments of the replay buffer, where upstream forgets them
        """
        if convert and self.algo not in HYPERPARAMS_CONVERTER:
            raise PluginError(f"algorithm {self.algo!r} has no converter for --trial-id")
        params = super().load_trial(storage, study_name, trial_id, convert)
        her_params = {key: params.pop(key) for key in HER_PARAMS if convert and key in params}
        if her_params:
            try:
                others = parse_kwargs(self._replay_buffer_kwargs, vars(upstream))
            except UnreadableError:
                # Code, which upstream evaluates
                params["replay_buffer_kwargs"] = f"{{**{self._replay_buffer_kwargs}, **{her_params}}}"
            else:
                params["replay_buffer_kwargs"] = {**others, **her_params}
        return params

    def objective(self, trial: optuna.Trial) -> float:
        """
        Train with the hyperparameters of a trial.

        :param trial: The trial
        :return: mean reward of the last evaluation
        :raises optuna.TrialPruned: if the trial was pruned, its hyperparameters are impossible, or a NaN appeared
        """
        self._study = trial.study
        opened: list[VecEnv] = []
        token = _trial_envs.set(opened)
        try:
            reward = super().objective(trial)
        except BaseException as error:
            # Upstream does not close what it opened before a constructor raised
            for env in opened:
                env.close()
            if isinstance(error, (AssertionError, ValueError, FloatingPointError)) and not isinstance(error, PluginError):
                print(f"Trial {trial.number} pruned: {type(error).__name__}: {error}")
                raise optuna.TrialPruned(str(error)) from error
            raise
        finally:
            _trial_envs.reset(token)
        if np.isnan(reward):
            raise optuna.TrialPruned("the evaluation gave NaN")
        return reward

    def add_trial_callback(self, callback: BaseCallback) -> None:
        """
        Let all trials have one more callback, beside those of the hyperparameters.

        :param callback: One and the same for all trials, one after the other
        """
        own: Any = self.specified_callbacks
        self.specified_callbacks = [*(own if isinstance(own, list) else [own]), callback]

    def make_sampler(self, seed: int) -> BaseSampler:
        """
        Make the sampler of ``--sampler``.

        :param seed: Its seed
        :return: the sampler
        """
        seeded = copy.copy(self)
        seeded.seed = seed
        return seeded._create_sampler(self.sampler)

    def make_pruner(self) -> BasePruner:
        """
        Make the pruner of ``--pruner``.

        :return: the pruner
        """
        return self._create_pruner(self.pruner)

    def hyperparameters_optimization(self) -> None:
        """
        Search hyperparameters, and write a report.

        :raises PluginError: if no trial finished; all trials stay in the storage
        """
        try:
            # Here and not for each trial: they may run in threads, which share the filters of warnings
            with self._evaluation_elsewhere():
                super().hyperparameters_optimization()
        except PluginError:
            raise
        except ValueError as error:
            if self._study is None or self._study.get_trials(states=[TrialState.COMPLETE]):
                raise
            states = [trial.state.name.lower() for trial in self._study.trials]
            counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
            kept = f"; study {self._study.study_name!r} is kept in {self.storage}" if self.storage else ""
            raise PluginError(f"no trial finished ({counts}): nothing to report{kept}") from error


def _full_name(cls: type) -> str:
    return re.escape(f"{cls.__module__}.{cls.__qualname__}")


# Imported first, this module is still empty when the hook of rl_zoo3.exp_manager asks for it
zoo.extend(upstream)

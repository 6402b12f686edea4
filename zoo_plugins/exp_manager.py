"""The zoo's experiment manager, with classes chosen by name in YAML and mistakes told before any work starts."""

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
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

from zoo_plugins import choices, space_block, zoo
from zoo_plugins.callbacks import TimestepBudget, UpdateRatioCallback, restore_gradient_steps
from zoo_plugins.config import Block, copy_containers, read_config
from zoo_plugins.registry import PluginError, did_you_mean
from zoo_plugins.space_block import SearchSpace
from zoo_plugins.trials import (
    SearchTrial,
    check_study,
    find_trial,
    note_search_space,
    trial_hyperparams,
    with_values,
    write_block,
)
from zoo_plugins.vec_envs.numpy_face import steps_tensors
from zoo_plugins.vec_envs.tensor_twins import with_tensor_wrappers

# What a block of hyperparameters changes in a manager
SET_BY_BLOCK = (
    "normalize",
    "normalize_kwargs",
    "frame_stack",
    "monitor_kwargs",
    "env_kwargs",
    "eval_env_kwargs",
    "vec_env_class",
    "vec_env_kwargs",
    "_vec_env_is_plugin",
)
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
        self._study: optuna.Study | None = None
        self.search_space = SearchSpace()
        self._block: dict[str, Any] = {}  # all hyperparameters but the search space, as they were read
        self._before_block: dict[str, Any] = {}
        self._trial_values: Mapping[str, Any] = {}  # what --trial-id has from a search space
        self._trial_callbacks: list[BaseCallback] = []
        self._action_space: Any = None

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the block of the environment, overridden by ``--trial-id`` and ``-params``.

        Unlike upstream, it leaves the dict of a ``.py`` file or package as it was, and takes ``--trial-id 0`` for a trial.

        :return: the hyperparameters, and the same, sorted, to be saved
        :raises PluginError: if the file can't be read or has no block for the environment
        """
        block = self._find_block(read_config(self.config))
        self._block = copy_containers(block)
        if self.storage and self.study_name and self.trial_id == 0:
            trial = self.load_trial(self.storage, self.study_name, 0)
            self.custom_hyperparams = {**trial, **(self.custom_hyperparams or {})}

        before = dict(block)
        try:
            # For a package, hyperparams is block
            hyperparams, saved_hyperparams = map(copy_containers, super().read_hyperparameters())
        finally:
            block.clear()
            block.update(before)
        from_trial = bool(self.storage and self.study_name and self.trial_id is not None)
        overruled = choices.overruled_key(block, self._command_line, self._trial_values)
        for found in (hyperparams, saved_hyperparams):
            found.pop(overruled, None)
            if from_trial:
                found.pop(space_block.KEY, None)
        self._block = {key: value for key, value in copy_containers(hyperparams).items() if key != space_block.KEY}
        if from_trial and self.verbose > 0:
            print(
                write_block(self.env_name.gym_id, saved_hyperparams, [f"Trial {self.trial_id} of study {self.study_name!r}"])
            )
        return hyperparams, saved_hyperparams

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
        self._before_block = copy_containers({name: vars(self)[name] for name in SET_BY_BLOCK})
        whole = Block(block.values, block.file, block.overrides)
        block.values.pop(space_block.KEY, None)
        processed = self._preprocess_block(block)
        self._read_search_space(whole)
        if self.optimize_hyperparameters and HYPERPARAMS_SAMPLER.get(self.algo, zoo.sample_nothing) is zoo.sample_nothing:
            if not self.search_space:
                known = ", ".join(sorted(name for name in HYPERPARAMS_SAMPLER if name != self.algo))
                raise PluginError(
                    f"algorithm {self.algo!r} has no search space for -optimize. Valid: {known}; or write a block "
                    f"{space_block.KEY} beside its hyperparameters"
                )
            # Upstream asks one in any case
            HYPERPARAMS_SAMPLER[self.algo] = zoo.sample_nothing
            self.search_space = replace(self.search_space, replace=True)
        if self.optimize_hyperparameters and self.storage and self.study_name:
            check_study(self.storage, self.study_name, self.search_space)
        return processed

    def _read_search_space(self, block: Block) -> None:
        if block.values.get(space_block.KEY) is None:
            return
        kinds, may_mean = choices.searchable(block, ALGOS[self.algo], self.vec_env_class)
        self.search_space = space_block.read_search_space(block, kinds, may_mean)
        entries = self.search_space.entries
        first = {name: entry.extremes[0] for name, entry in entries.items()}
        for name, entry in entries.items():
            for value in entry.extremes:
                try:
                    self._with_values({name: value})
                except PluginError as error:
                    try:  # it may need others of the search space
                        self._with_values({**first, name: value})
                    except PluginError:
                        raise space_block.explain(error, block, name, value) from error.__cause__
        if set(choices.UPDATE_RULES) <= set(entries):
            problem = PluginError("gradient_steps is there too, and only one of them can be given")
            raise space_block.explain(problem, block, "update_ratio", first["update_ratio"])

    def _with_values(self, values: Mapping[str, Any]) -> "PluginExperimentManager":
        """Set another manager up, with values of a search space in the block."""
        manager = copy.copy(self)
        vars(manager).update(copy_containers(self._before_block))
        manager.verbose = 0  # it has been printed
        maps = {**{key: getattr(manager, key) for key in ("env_kwargs", "vec_env_kwargs")}, **self._block}
        found = with_values(values, self._block, maps, vars(upstream))
        found.pop(choices.overruled_key({}, {}, values), None)
        block = Block(found, self.config, overrides=self._command_line)
        hyperparams, manager.env_wrapper, _, manager.vec_env_wrapper = manager._preprocess_block(block)
        manager._hyperparams = hyperparams
        if self._action_space is not None:
            manager._hyperparams = manager._preprocess_action_noise(
                hyperparams, {}, SimpleNamespace(action_space=self._action_space)
            )
        manager.verbose = self.verbose
        return manager

    def _preprocess_block(self, block: Block) -> tuple[dict[str, Any], Any, Any, Any]:
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
        if block.values.get("noise_type") is not None and block.values.get("noise_std") is None:
            raise block.error("noise_type", "noise_std is missing")
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

    def _preprocess_action_noise(
        self, hyperparams: dict[str, Any], saved_hyperparams: dict[str, Any], env: Any
    ) -> dict[str, Any]:
        """
        Make the action noise.

        :param hyperparams: Arguments of the constructor, with ``noise_type`` and ``noise_std``
        :param saved_hyperparams: Not used
        :param env: The environment, or anything with its action space
        :return: arguments of the constructor
        """
        self._action_space = env.action_space
        hyperparams = super()._preprocess_action_noise(hyperparams, saved_hyperparams, env)
        # Upstream leaves those of a trial without noise to the constructor, which does not take them
        for key in ("noise_type", "noise_std"):
            hyperparams.pop(key, None)
        return hyperparams

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
        :return: hyperparameters; those of HER, which upstream forgets, and of a search space are where they belong
        :raises PluginError: if there is no such study or trial
        """
        trial = find_trial(storage, study_name, trial_id)
        if not convert:
            return trial.params
        hyperparams, self._trial_values = trial_hyperparams(trial, self._converter, self._block, vars(upstream))
        return hyperparams

    @property
    def _converter(self) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def refuse(params: dict[str, Any]) -> dict[str, Any]:
            raise PluginError(f"algorithm {self.algo!r} has no converter for --trial-id")

        return HYPERPARAMS_CONVERTER.get(self.algo, refuse)

    def write_trial(self, trial: FrozenTrial, *remarks: str) -> str:
        """
        Write the hyperparameters of a trial as they stand in a file.

        :param trial: A trial of a search with the hyperparameters of this manager
        :param remarks: Comments to begin with
        :return: YAML
        """
        found, values = trial_hyperparams(trial, self._converter, self._block, vars(upstream))
        hyperparams = {**self._block, **found}
        hyperparams.pop(choices.overruled_key(self._block, {}, values), None)
        return write_block(self.env_name.gym_id, hyperparams, remarks)

    def objective(self, trial: optuna.Trial) -> float:
        """
        Train with the hyperparameters of a trial.

        :param trial: The trial
        :return: mean reward of the last evaluation
        :raises optuna.TrialPruned: if the trial was pruned, its hyperparameters are impossible, or a NaN appeared
        """
        if self._study is None:
            self._study = trial.study
            note_search_space(self._study, self.search_space)
        opened: list[VecEnv] = []
        token = _trial_envs.set(opened)
        try:
            # A manager of its own, because trials may run in several threads
            values = self.search_space.suggest(trial)
            manager = self._with_values(values) if self.search_space else copy.copy(self)
            own: Any = manager.specified_callbacks
            own = own if isinstance(own, list) else [own]
            manager.specified_callbacks = [*own, *self._trial_callbacks, TimestepBudget(self.n_timesteps)]
            searched: Any = SearchTrial(trial, self.search_space, values, manager._hyperparams)
            return super(PluginExperimentManager, manager).objective(searched)
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

    def add_trial_callback(self, callback: BaseCallback) -> None:
        """
        Let all trials have one more callback, beside those of the hyperparameters.

        :param callback: One and the same for all trials, one after the other
        """
        self._trial_callbacks.append(callback)

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
            if self._study is not None and (self.search_space.replace or self.algo in HYPERPARAMS_CONVERTER):
                best = self._study.best_trial
                remark = f"Trial {best.number}: {best.value:.6g} after {self.n_timesteps} timesteps"
                print(f"The best trial's hyperparameters, for --conf-file:\n\n{self.write_trial(best, remark)}")
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

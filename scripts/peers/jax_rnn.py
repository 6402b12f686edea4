"""
Recurrent PPO in the style of PureJaxRL: environments, acting and updates are compiled by JAX.

Written for this comparison. Networks, losses and the normalisation of observations and rewards are those of the other
sides; arrays of actor and critic are stacked along an axis of two, so that both LSTMs are one scan.
"""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax, random

from peers.work import (
    CLIP_RANGE,
    GAE_LAMBDA,
    GAMMA,
    HIDDEN_SIZE,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    N_ENVS,
    N_OBS,
    VF_COEF,
    Clock,
    Work,
    expected_facts,
)

Array = Any
Params = Any
OPTIMIZER = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(LEARNING_RATE, eps=1e-5))
EPISODE_LENGTH = 200
# Defaults of VecNormalize
EPSILON, CLIP = 1e-8, 10.0


class Pendulum(NamedTuple):
    """State of the environments. Shape of each: (n_envs,)."""

    angle: Array
    velocity: Array
    time: Array
    episode_return: Array


class Moments(NamedTuple):
    """Running mean and variance."""

    mean: Array
    var: Array
    count: Array


class Carry(NamedTuple):
    """What goes from step to step. LSTM states: (hidden, cell), shape of each (2, n_envs, hidden_size)."""

    key: Array
    env: Pendulum
    obs: Array
    starts: Array
    states: Any
    obs_moments: Moments
    discounted: Array
    discounted_moments: Moments


class Step(NamedTuple):
    """What is recorded of a step."""

    obs: Array
    starts: Array
    actions: Array
    log_probs: Array
    values: Array
    rewards: Array
    dones: Array
    episode_returns: Array


class Batch(NamedTuple):
    """What an update needs, in rows of consecutive timesteps. Shape of each but the states: (n_rows, length, ...)."""

    obs: Array
    starts: Array
    actions: Array
    log_probs: Array
    advantages: Array
    returns: Array
    states: Any


def reset_pendulum(key: Array) -> Pendulum:
    """Start an episode in all environments."""
    angle_key, velocity_key = random.split(key)
    return Pendulum(
        random.uniform(angle_key, (N_ENVS,), minval=-jnp.pi, maxval=jnp.pi),
        random.uniform(velocity_key, (N_ENVS,), minval=-1.0, maxval=1.0),
        jnp.zeros(N_ENVS, jnp.int32),
        jnp.zeros(N_ENVS),
    )


def observe(env: Pendulum) -> Array:
    """Observe the environments, with the velocity hidden."""
    return jnp.stack([jnp.cos(env.angle), jnp.sin(env.angle), jnp.zeros(N_ENVS)], axis=1)


def step_pendulum(env: Pendulum, torque: Array) -> tuple[Pendulum, Array]:
    """Take a step as gymnasium's Pendulum-v1 does (g = 10, m = l = 1, dt = 0.05); return the rewards too."""
    torque = jnp.clip(torque, -2.0, 2.0)
    from_upright = (env.angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
    rewards = -(from_upright**2 + 0.1 * env.velocity**2 + 0.001 * torque**2)
    velocity = jnp.clip(env.velocity + (15.0 * jnp.sin(env.angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
    angle = env.angle + 0.05 * velocity
    return Pendulum(angle, velocity, env.time + 1, env.episode_return + rewards), rewards


def start_moments(shape: tuple[int, ...]) -> Moments:
    """Start as VecNormalize does."""
    return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.asarray(1e-4))


def update_moments(moments: Moments, values: Array) -> Moments:
    """Add values, shape (n_envs, ...), to running moments."""
    n = len(values)
    count = moments.count + n
    delta = values.mean(axis=0) - moments.mean
    squares = moments.var * moments.count + values.var(axis=0) * n + delta**2 * moments.count * n / count
    return Moments(moments.mean + delta * n / count, squares / count, count)


def normalize(obs: Array, moments: Moments) -> Array:
    """Normalise observations."""
    return jnp.clip((obs - moments.mean) / jnp.sqrt(moments.var + EPSILON), -CLIP, CLIP)


def make_params(key: Array) -> Params:
    """Draw parameters, in the range that PyTorch takes for this size."""
    sizes = {
        "lstm_input": (2, N_OBS, 4 * HIDDEN_SIZE),
        "lstm_hidden": (2, HIDDEN_SIZE, 4 * HIDDEN_SIZE),
        "lstm_bias": (2, 4 * HIDDEN_SIZE),
        "layer": (2, HIDDEN_SIZE, HIDDEN_SIZE),
        "layer_bias": (2, HIDDEN_SIZE),
        "output": (2, HIDDEN_SIZE),
        "output_bias": (2,),
    }
    bound = HIDDEN_SIZE**-0.5
    keys = random.split(key, len(sizes))
    params = {name: random.uniform(k, sizes[name], minval=-bound, maxval=bound) for k, name in zip(keys, sizes, strict=True)}
    return {**params, "log_std": jnp.zeros(1)}


def project(params: Params, obs: Array) -> Array:
    """Compute the part of the LSTM's gates that needs no state. Shape: (..., 2, n, 4 * hidden_size)."""
    return jnp.einsum("...ni,aig->...ang", obs, params["lstm_input"]) + params["lstm_bias"][:, None]


def step_lstm(params: Params, states: Any, projected: Array, starts: Array) -> Any:
    """Take a step of both LSTMs, from zeros where an episode starts."""
    hidden, cell = (jnp.where(starts[:, None], 0.0, state) for state in states)
    gates = projected + jnp.einsum("anh,ahg->ang", hidden, params["lstm_hidden"])
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def run_heads(params: Params, hidden: Array) -> tuple[Array, Array]:
    """Compute mean actions and values, shape of each (..., n), from latents of shape (..., 2, n, hidden_size)."""
    layer = jnp.einsum("...anh,ahk->...ank", hidden, params["layer"]) + params["layer_bias"][:, None]
    outputs = jnp.einsum("...anh,ah->...an", jax.nn.relu(layer), params["output"]) + params["output_bias"][:, None]
    return outputs[..., 0, :], outputs[..., 1, :]


def log_prob(params: Params, means: Array, actions: Array) -> Array:
    """Log density of a Gaussian."""
    log_std = params["log_std"][0]
    return -0.5 * ((actions - means) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)


def next_values(params: Params, carry: Carry, obs: Array, starts: Array) -> Array:
    """Values of observations that follow the LSTM states."""
    hidden, _ = step_lstm(params, carry.states, project(params, obs), starts)
    return run_heads(params, hidden)[1]


def act_and_step(params: Params, carry: Carry, _: None) -> tuple[Carry, Step]:
    """Take a step in all environments, with the order of events of DummyVecEnv and VecNormalize."""
    key, noise_key, reset_key = random.split(carry.key, 3)
    states = step_lstm(params, carry.states, project(params, carry.obs), carry.starts)
    means, values = run_heads(params, states[0])
    actions = means + jnp.exp(params["log_std"][0]) * random.normal(noise_key, (N_ENVS,))

    env, raw_rewards = step_pendulum(carry.env, actions)
    dones = env.time == EPISODE_LENGTH
    last_obs = observe(env)
    next_env = jax.tree.map(functools.partial(jnp.where, dones), reset_pendulum(reset_key), env)
    next_obs = observe(next_env)

    obs_moments = update_moments(carry.obs_moments, next_obs)
    discounted = carry.discounted * GAMMA + raw_rewards
    discounted_moments = update_moments(carry.discounted_moments, discounted)
    rewards = jnp.clip(raw_rewards / jnp.sqrt(discounted_moments.var + EPSILON), -CLIP, CLIP)

    next_carry = Carry(
        key,
        next_env,
        normalize(next_obs, obs_moments),
        dones,
        states,
        obs_moments,
        jnp.where(dones, 0.0, discounted),
        discounted_moments,
    )
    # Every episode ends by its time limit
    last_values = lax.cond(
        dones.any(),
        lambda: next_values(params, next_carry, normalize(last_obs, obs_moments), jnp.zeros(N_ENVS, bool)),
        lambda: jnp.zeros(N_ENVS),
    )
    rewards += GAMMA * last_values * dones
    log_probs = log_prob(params, means, actions)
    return next_carry, Step(carry.obs, carry.starts, actions, log_probs, values, rewards, dones, env.episode_return)


def compute_advantages(steps: Step, last_values: Array) -> Array:
    """Compute GAE advantages. Shape: (n_steps, n_envs)."""

    def add_advantage(following: tuple[Array, Array], step: Step) -> tuple[tuple[Array, Array], Array]:
        advantage, value = following
        continues = 1.0 - step.dones
        advantage = step.rewards + GAMMA * (value + GAE_LAMBDA * advantage) * continues - step.values
        return (advantage, step.values), advantage

    return lax.scan(add_advantage, (jnp.zeros(N_ENVS), last_values), steps, reverse=True)[1]


def collect(work: Work, params: Params, carry: Carry) -> tuple[Carry, Batch, Array]:
    """Collect a rollout; return the mean return of its episodes too."""
    assert work.seq_length is not None
    n_rows = work.n_steps // work.seq_length

    def collect_row(carry: Carry, _: None) -> tuple[Carry, tuple[Any, Step]]:
        # States are kept where rows start
        next_carry, steps = lax.scan(functools.partial(act_and_step, params), carry, length=work.seq_length)
        return next_carry, (carry.states, steps)

    carry, (states, row_steps) = lax.scan(collect_row, carry, length=n_rows)
    steps = jax.tree.map(lambda x: x.reshape(work.n_steps, *x.shape[2:]), row_steps)

    advantages = compute_advantages(steps, next_values(params, carry, carry.obs, carry.starts))

    def to_rows(x: Array) -> Array:
        # (n_steps, n_envs, ...) -> (n_rows * n_envs, seq_length, ...)
        x = jnp.moveaxis(x.reshape(n_rows, work.seq_length, *x.shape[1:]), 2, 1)
        return x.reshape(n_rows * N_ENVS, *x.shape[2:])

    rows = Batch(
        to_rows(steps.obs),
        to_rows(steps.starts),
        to_rows(steps.actions),
        to_rows(steps.log_probs),
        to_rows(advantages),
        to_rows(advantages + steps.values),
        jax.tree.map(lambda x: jnp.moveaxis(x, 2, 1).reshape(n_rows * N_ENVS, 2, HIDDEN_SIZE), states),
    )
    mean_return = jnp.sum(steps.episode_returns * steps.dones) / jnp.sum(steps.dones)
    return carry, rows, mean_return


def compute_loss(params: Params, batch: Batch) -> Array:
    """Compute the loss of a minibatch. Shape of its steps: (length, n_rows, ...); of its states: (2, n_rows, ...)."""

    def step(states: Any, inputs: tuple[Array, Array]) -> tuple[Any, Array]:
        states = step_lstm(params, states, *inputs)
        return states, states[0]

    _, latents = lax.scan(step, batch.states, (project(params, batch.obs), batch.starts))
    means, values = run_heads(params, latents)
    ratio = jnp.exp(log_prob(params, means, batch.actions) - batch.log_probs)
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1.0 - CLIP_RANGE, 1.0 + CLIP_RANGE)
    policy_loss = -jnp.minimum(advantages * ratio, advantages * clipped).mean()
    return policy_loss + VF_COEF * jnp.square(values - batch.returns).mean()


def update(work: Work, sizes: set[int], params: Params, opt_state: Any, key: Array, rows: Batch) -> tuple[Params, Any, Array]:
    """Train on a rollout; note the sizes of minibatches while it is traced."""

    def train_minibatch(carry: tuple[Params, Any], indices: Array) -> tuple[tuple[Params, Any], None]:
        params, opt_state = carry
        batch = jax.tree.map(lambda x: jnp.swapaxes(x[indices], 0, 1), rows)
        sizes.add(batch.actions.size)
        updates, opt_state = OPTIMIZER.update(jax.grad(compute_loss)(params, batch), opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    def train_epoch(carry: tuple[Params, Any], key: Array) -> tuple[tuple[Params, Any], None]:
        order = random.permutation(key, len(rows.actions)).reshape(work.n_minibatches, -1)
        return lax.scan(train_minibatch, carry, order)

    key, *epoch_keys = random.split(key, work.n_epochs + 1)
    (params, opt_state), _ = lax.scan(train_epoch, (params, opt_state), jnp.stack(epoch_keys))
    return params, opt_state, key


def start_training(seed: int) -> tuple[Params, Carry, Array]:
    """Draw parameters and reset the environments; return the key for updates too."""
    param_key, reset_key, carry_key, key = random.split(random.key(seed), 4)
    env = reset_pendulum(reset_key)
    obs_moments = update_moments(start_moments((N_OBS,)), observe(env))
    carry = Carry(
        carry_key,
        env,
        normalize(observe(env), obs_moments),
        jnp.ones(N_ENVS, bool),
        (jnp.zeros((2, N_ENVS, HIDDEN_SIZE)),) * 2,
        obs_moments,
        jnp.zeros(N_ENVS),
        start_moments(()),
    )
    return make_params(param_key), carry, key


def train(work: Work) -> dict[str, Any]:
    """
    Train for some rollouts.

    :param work: What to do
    :return: times of each rollout, seconds of compilation, mean returns, facts
    """
    params, carry, key = start_training(work.seed)
    opt_state = OPTIMIZER.init(params)
    sizes: set[int] = set()
    start = time.perf_counter()
    compiled_collect = jax.jit(functools.partial(collect, work)).lower(params, carry).compile()
    rows = jax.eval_shape(functools.partial(collect, work), params, carry)[1]
    compiled_update = jax.jit(functools.partial(update, work, sizes)).lower(params, opt_state, key, rows).compile()
    compile_seconds = time.perf_counter() - start

    clock, returns = Clock(), []
    for _ in range(work.n_rollouts + 1):
        carry, rows, mean_return = jax.block_until_ready(compiled_collect(params, carry))
        clock.switch("update")
        params, opt_state, key = jax.block_until_ready(compiled_update(params, opt_state, key, rows))
        clock.end_rollout()
        returns.append(float(mean_return))

    shapes = [params["lstm_input"].shape, params["lstm_hidden"].shape]
    return {
        "rollouts": clock.rollouts,
        "returns": [value if value == value else None for value in returns],
        "compile_seconds": compile_seconds,
        "facts": {
            "optimizer_steps": int(optax.tree_utils.tree_get(opt_state, "count")) / (work.n_rollouts + 1),
            "minibatch_sizes": sorted(sizes),
            "lstms": [[shapes[0][1], shapes[1][1]]] * shapes[0][0],
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        },
        "expected_facts": expected_facts(work, lstm_biases=1),
    }

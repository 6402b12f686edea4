"""GRUs in the place of a recurrent policy's LSTMs."""

import torch as th
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import nn


class GRU(nn.GRU):
    """
    ``nn.GRU`` with the interface of ``nn.LSTM``, so that whatever carries an LSTM's states carries those of a GRU.

    The cell state, which a GRU does not have, is handed through as it came.
    """

    def forward(  # type: ignore[override]
        self, input: th.Tensor, states: tuple[th.Tensor, th.Tensor]
    ) -> tuple[th.Tensor, tuple[th.Tensor, th.Tensor]]:
        """
        Read sequences.

        :param input: The sequences. Shape: (length, n_seq, input_size)
        :param states: Hidden states before them, and cell states. Shape of each: (n_layers, n_seq, hidden_size)
        :return: hidden states of the last layer at each timestep, shape (length, n_seq, hidden_size); hidden states after the
            sequences, and the cell states
        """
        output, hidden = super().forward(input, states[0])
        return output, (hidden, states[1])


def replace_lstms(policy: RecurrentActorCriticPolicy, lr_schedule: Schedule) -> None:
    """
    Give a policy that was just made a GRU for each of its LSTMs, and a new optimizer.

    It changes the policy and not its class: a user's own policy works too, and a saved model names no class of ours.
    The modules keep their names, ``lstm_actor`` and ``lstm_critic``.

    :param policy: The policy
    :param lr_schedule: Learning rate schedule, of which the optimizer gets the first value
    :raises ValueError: if the policy has something else than LSTMs of PyTorch
    """
    for name in ("lstm_actor", "lstm_critic"):
        lstm = getattr(policy, name)
        if lstm is None:
            continue
        if type(lstm) is not nn.LSTM:
            raise ValueError(
                f"rnn_type='gru' takes the place of an nn.LSTM, but {name} of policy {type(policy).__name__} "
                f"is a {type(lstm).__name__}: leave rnn_type out"
            )
        gru = GRU(lstm.input_size, lstm.hidden_size, lstm.num_layers, **policy.lstm_kwargs)
        setattr(policy, name, gru.to(policy.device))
    # As RecurrentActorCriticPolicy.__init__ does
    policy.optimizer = policy.optimizer_class(
        policy.parameters(),
        lr=lr_schedule(1),  # type: ignore[call-arg]  # an argument of every optimizer but the base class
        **policy.optimizer_kwargs,
    )

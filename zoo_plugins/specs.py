"""Descriptions of our algorithms, which the entry points in pyproject.toml point to."""

from zoo_plugins.registry import AlgoSpec

PPO_LSTM_SEQ = AlgoSpec(
    cls="zoo_plugins.algos:SeqRecurrentPPO",
    sampler="zoo_plugins.search_spaces:sample_ppo_lstm_seq_params",
    converter="zoo_plugins.search_spaces:convert_ppo_lstm_seq_params",
    hyperparams="zoo_plugins:hyperparams/ppo_lstm_seq.yml",
)

MASKABLE_PPO_LSTM_SEQ = AlgoSpec(
    cls="zoo_plugins.algos:MaskableSeqRecurrentPPO",
    sampler="zoo_plugins.search_spaces:sample_ppo_lstm_seq_params",
    converter="zoo_plugins.search_spaces:convert_ppo_lstm_seq_params",
    hyperparams="zoo_plugins:hyperparams/maskable_ppo_lstm_seq.yml",
)

PPO_TENSOR = AlgoSpec(
    cls="zoo_plugins.algos:TensorPPO",
    sampler="zoo_plugins.search_spaces:sample_ppo_tensor_params",
    converter="zoo_plugins.search_spaces:convert_ppo_tensor_params",
    hyperparams="zoo_plugins:hyperparams/ppo_tensor.yml",
)

"""``python -m zoo_plugins tune``: hyperparameter search of the zoo in workers that Ray starts on one machine or a cluster."""

"""``python -m zoo_plugins doctor``: whether all that is installed works, and what is missing for what."""

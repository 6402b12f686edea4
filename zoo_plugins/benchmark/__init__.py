"""``python -m zoo_plugins benchmark``: short comparisons with upstream's classes, on the machine of whoever wants to know."""

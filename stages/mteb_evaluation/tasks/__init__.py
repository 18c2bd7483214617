"""Evaluation tasks: one file per kind, with its config, its data and what mteb does with them."""

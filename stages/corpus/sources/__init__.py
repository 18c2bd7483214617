"""Sources of corpora: one file per kind, with its config, its facts and its rows."""

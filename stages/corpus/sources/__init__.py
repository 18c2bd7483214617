"""Where a corpus may come from: one file per kind of source, with its config, its facts and its rows."""

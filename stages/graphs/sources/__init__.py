"""Sources of corpora with graphs, one file each."""

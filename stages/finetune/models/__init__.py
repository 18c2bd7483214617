"""Graph-text models, one file each."""

"""Where graphs for texts come from, one file each."""

"""Our own readouts of graphs, one file each."""

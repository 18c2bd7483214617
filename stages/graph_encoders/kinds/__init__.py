"""Our own graph encoders, one file each."""

"""Largest numbers that a config may ask for: far beyond any use, yet nothing is allocated without end."""

MAX_SEED = 2**32 - 1
"""What every generator of random numbers takes, scikit-learn's included; the smallest seed is 0."""
MAX_WIDTH = 1 << 16
"""Columns, hidden units, attention heads."""
MAX_LAYERS = 1_000
"""Layers of a head, convolutions, rounds."""
MAX_STEPS = 1 << 20
"""Rows of a batch, epochs, iterations, resamples."""
MAX_TEXTS = 1 << 31
"""Texts, tokens or rows of data that exist already."""
MAX_GENERATED = 1_000_000
"""Texts that are made up, or words of one."""
MAX_BYTES = 1 << 50
"""Of memory, or on a disk."""

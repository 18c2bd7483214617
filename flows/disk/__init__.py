"""What a home takes on disk, and what of it can go."""

"""The feature store: one growing Zarr store per (backbone, recipe, dtype, max_length)."""

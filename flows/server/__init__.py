"""Prefect's server: the one that is named, or one of our own for as long as a run takes."""

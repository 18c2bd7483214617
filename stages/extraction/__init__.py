"""Frozen backbones: how texts become model input, what is captured on the way, and where it goes."""

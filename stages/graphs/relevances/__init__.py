"""Kinds of relevance: one file each."""

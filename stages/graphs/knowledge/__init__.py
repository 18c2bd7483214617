"""Kinds of knowledge graph: one file each."""

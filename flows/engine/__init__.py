"""Engines run the nodes of a graph: one file each, with the same outcome whichever ran."""

"""Texts and the examples that refer to them: from files, from the hub, or generated."""

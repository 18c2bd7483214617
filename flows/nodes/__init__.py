"""The nodes that every experiment has, and what nodes of methods and probes share."""

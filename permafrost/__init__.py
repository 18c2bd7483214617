"""Permafrost: a frozen backbone runs once over a corpus; everything after it works from that cache."""

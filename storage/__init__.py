"""Bytes, axes and identity: the feature store and the artifact store. Knows no model library."""

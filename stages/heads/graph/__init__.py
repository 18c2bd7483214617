"""Convolutions on the cosine graph of the tokens, and the graph itself."""

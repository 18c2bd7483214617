"""Convolutions on the cosine graph of the tokens: kinds of `conv`, and the graph that they run on."""

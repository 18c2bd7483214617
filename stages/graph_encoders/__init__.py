"""Graph encoders: small modules that turn the graph beside a text into vectors of its nodes, a vector of the
graph, and from that the one token which a language model reads."""

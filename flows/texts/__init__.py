"""A file of texts to features, to vectors or to answers."""

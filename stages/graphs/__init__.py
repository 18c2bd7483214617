"""Corpora with graphs: texts, graphs of labelled nodes and typed relations beside them, and pairs of both."""

"""Aggregations without parameters, one file each."""

from permafrost.stages.embed.aggregations.aggregation import AGGREGATIONS, Aggregation, Method

__all__ = ["AGGREGATIONS", "Aggregation", "Method"]

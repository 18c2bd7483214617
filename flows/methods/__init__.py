"""The methods of an experiment, told apart by `kind`: one file each."""

from permafrost.flows.methods.method import MethodConfig

__all__ = ["MethodConfig"]

"""The probes of an experiment: what is measured of a backbone and its features, one file for each `kind`."""

from permafrost.flows.methods.probes.probe import Probe, ProbeConfig

__all__ = ["Probe", "ProbeConfig"]

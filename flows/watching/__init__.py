"""The flow that looks for new texts and starts a run that extracts them; deployments name this package."""

from permafrost.flows.watching.flow import watch

__all__ = ["watch"]

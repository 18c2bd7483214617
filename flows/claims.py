"""Claims of an experiment name what is in it."""

from collections.abc import Mapping, Sequence

from permafrost.flows.methods.method import Method
from permafrost.flows.methods.probes import Probe
from permafrost.stages.report.claim_kinds import AnyClaim
from permafrost.storage.quoting import quoted


def check_claims(
    claims: Sequence[AnyClaim], methods: Mapping[str, Method], probes: Mapping[str, Probe]
) -> None:
    """Check the names in `report.claims`.

    Raises:
        ValueError: a method, a probe or a curve of a probe is not there; pydantic makes its own error of it.
    """
    for number, claim in enumerate(claims):
        wanted: list[tuple[str, str, Mapping[str, object]]]
        wanted = [("method", name, methods) for name in claim.methods]
        for probe, curve in claim.curves:
            wanted.append(("probe", probe, probes))
            if probe in probes:
                wanted.append((f"curve of probe {quoted(probe)}", curve, probes[probe].methods))
        for what, name, known in wanted:
            if name not in known:
                raise ValueError(
                    f"report.claims.{number} names the {what} {quoted(name)}; there are "
                    f"{', '.join(known) or 'none'}; without claims: --set report.claims=[]"
                )

"""One stored array with a state per token: what the probes of token graphs read."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, field_validator

from permafrost.stages.embed import Features
from permafrost.stages.extraction.capture import ArrayName, CaptureItem
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted
from permafrost.storage.readers import FeatureReader


class TokenStates(BaseModel):
    """Which states are looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: str
    """Stored array of token states, e.g. `hidden/6`."""

    @field_validator("layer")
    @classmethod
    def _per_token(cls, layer: str) -> str:
        name = ArrayName.parse(layer)
        if name.axis != "token" or name.what == "attention_rows":
            raise ValueError(
                f"{quoted(layer)} has no state per token; name hidden/K, hidden/final or values/K"
            )
        return layer

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What is read of the store.

        Raises:
            InputError: this backbone does not have it.
        """
        name = ArrayName.parse(self.layer)
        item = CaptureItem(what=name.what, layers=str(name.index))
        return tuple(array.text for array in item.names(sizes))

    def reader(self, prompt_features: Sequence[Features]) -> FeatureReader:
        """The states of each text's span.

        Raises:
            InputError: an ensemble of prompts.
        """
        if len(prompt_features) != 1:
            raise InputError(
                f"the token graph of {len(prompt_features)} prompts of an ensemble was asked for; take one "
                "prompt of it"
            )
        return prompt_features[0].reader(self.layer, "span")

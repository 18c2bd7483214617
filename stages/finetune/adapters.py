"""The adapters of one backbone, as peft makes them.

What is drawn comes from generators of the fit's own; dropout of the adapters is on in training, the
backbone's own is not.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from permafrost.stages.extraction.families import HasModel
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.finetune.tuned import Tuned
from permafrost.stages.finetune.tunings.lora import Lora
from permafrost.stages.finetune.wrapping import Forward, wrapped
from permafrost.stages.graph_encoders.draws import TrainingDraws
from permafrost.stages.heads.directed_draws import DirectedDraws

WEIGHTS = "adapter_model.safetensors"
"""As peft names it; `adapter_config.json` lies beside it."""


class Adapters(Tuned):
    """The adapters of one backbone, by peft's names of their weights."""

    def __init__(self, config: Lora, backbone: HasModel, draw: torch.Generator) -> None:
        """Args: config: of the adapters. backbone: gets them. draw: draws them."""
        # Takes a second to import, which nothing else here needs.
        import peft
        from transformers.pytorch_utils import Conv1D

        blocks = backbone.family.block_list(backbone.model)
        names = "|".join(re.escape(layer) for layer in config.layers(backbone.family))
        is_conv = isinstance(backbone.family.projection_module(backbone.model, 1), Conv1D)
        settings = peft.LoraConfig(
            r=config.r,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=rf"{re.escape(backbone.family.blocks)}\.\d+\.({names})",
            modules_to_save=list(config.norms(backbone.family)) or None,
            fan_in_fan_out=is_conv,
        )
        # One thread at a time: filters of warnings belong to the process.
        with quiet_loading(), warnings.catch_warnings(), DirectedDraws(draw):
            # transformers warns of a name of its own that peft still asks for.
            warnings.simplefilter("ignore", FutureWarning)
            model = peft.get_peft_model(cast(Any, backbone.model), settings)
        named = dict(model.named_parameters())
        weights = peft.get_peft_model_state_dict(model, named, save_embedding_layers=False)
        super().__init__(cast(dict[str, nn.Parameter], weights))
        _in_full_precision(blocks)
        # Where a model lies on this machine is none of its adapters' business.
        settings.base_model_name_or_path, settings.inference_mode = None, True
        self.settings = settings
        self._merge = cast(Any, model).merge_and_unload
        self._blocks = blocks
        layers = [m for block in blocks for m in block.modules()]
        # Theirs alone are switched by train and eval: a frozen block stays in evaluation mode.
        self.dropouts = nn.ModuleList(
            drop
            for layer in layers
            if isinstance(layer, peft.tuners.lora.LoraLayer)
            for drop in layer.lora_dropout.values()
            if isinstance(drop, nn.Dropout)
        )
        self.draws = TrainingDraws(draw)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """One generator per block and pass, so that a block that is computed again draws the same."""
        generator = self.draws()
        if generator is None or not self.dropouts:
            yield
            return
        device = generator.device
        seeds = torch.randint(1 << 62, (len(self._blocks),), generator=generator, device=device)

        def around(block: int, forward: Forward) -> Forward:
            return partial(_drawn, forward, int(seeds[block]), device)

        with wrapped(self._blocks, around):
            yield

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """As `peft.PeftModel.from_pretrained` reads it, given the backbone as AutoModel loads it."""
        save_file(dict(weights), folder / WEIGHTS, metadata={"format": "pt"})
        self.settings.save_pretrained(str(folder))

    def merge(self) -> None:
        """The adapted layers are as they were built, with what the adapters added in their weights."""
        self._merge()


def load_as_peft(backbone: HasModel, folder: Path) -> None:
    """Put adapters into a backbone, the caller's own, as whoever loads them with peft alone has them: norms
    that were trained are rounded to the backbone's dtype, in which they compute.

    Args:
        backbone: as it was before it was trained.
        folder: that `Adapters.save` wrote.
    """
    import peft

    with quiet_loading(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        peft.PeftModel.from_pretrained(cast(Any, backbone.model), str(folder))


def _drawn(forward: Forward, seed: int, device: torch.device, *args: Any, **kwargs: Any) -> Any:
    with DirectedDraws(torch.Generator(device).manual_seed(seed)):
        return forward(*args, **kwargs)


def _in_full_precision(blocks: Sequence[nn.Module]) -> None:
    """Norms that are trained compute in float32: in half precision a step is less than their rounding."""
    from peft.utils import ModulesToSaveWrapper

    for wrapper in (m for block in blocks for m in block.modules()):
        if not isinstance(wrapper, ModulesToSaveWrapper):
            continue
        dtype = next((weight.dtype for weight in wrapper.parameters()), torch.float32)
        if dtype != torch.float32:
            wrapper.modules_to_save.float()
            wrapper.register_forward_pre_hook(lambda _, args: (args[0].float(),))
            wrapper.register_forward_hook(partial(_rounded, dtype))


def _rounded(dtype: torch.dtype, _: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> Tensor:
    return out.to(dtype)

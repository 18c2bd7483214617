import pytest
from pydantic import ValidationError

from permafrost.stages.embed import EmbedConfig, layers_of, required_arrays
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

DECODER = BackboneSizes(
    model_type="llama",
    n_layers=4,
    d_model=8,
    d_value=4,
    n_attn_heads=4,
    n_kv_heads=2,
    d_head=2,
    has_final_norm=True,
    is_decoder=True,
    max_positions=64,
)
ENCODER = DECODER.model_copy(update={"has_final_norm": False, "is_decoder": False})


@pytest.mark.parametrize(
    ("fields", "sizes", "layers"),
    [
        ({"method": "mean"}, DECODER, ("final",)),
        ({"method": "mean"}, ENCODER, (4,)),
        ({"method": "mean", "of": "values"}, DECODER, (4,)),
        ({"method": "hs"}, DECODER, (1, 2, 3, 4)),
        ({"method": "mean", "layers": "all"}, DECODER, (1, 2, 3, 4)),
        ({"method": "mean", "layers": "0,all,final"}, DECODER, (0, 1, 2, 3, 4, "final")),
        ({"method": "va", "layers": "half"}, DECODER, (2, 3, 4)),
        ({"method": "wva", "layers": "3-4, 1,3"}, DECODER, (1, 3, 4)),
        ({"method": "wva", "layers": "last"}, DECODER, (4,)),
        ({"method": "mean", "layers": 3}, DECODER, (3,)),
        ({"method": "hs", "layers": "auto"}, DECODER, (1, 2, 3, 4)),
        ({"method": "mean", "layers": "best"}, DECODER, (1, 2, 3, 4)),
    ],
)
def test_layers_by_word(
    fields: dict[str, str], sizes: BackboneSizes, layers: tuple[int | str, ...]
) -> None:
    assert layers_of(EmbedConfig.model_validate(fields), sizes) == layers


@pytest.mark.parametrize(
    ("fields", "arrays"),
    [
        ({"method": "last", "layers": "3"}, ("hidden/3",)),
        ({"method": "max", "of": "values", "layers": "2"}, ("values/2",)),
        ({"method": "hs", "layers": "half"}, ("hidden/2", "hidden/3", "hidden/4")),
        ({"method": "va", "layers": "1"}, ("values/1",)),
        (
            {"method": "aligned_wva", "layers": "1,2"},
            ("attention_rows/1", "attention_rows/2", "values/1", "values/2"),
        ),
    ],
)
def test_only_what_a_method_reads_is_captured(
    fields: dict[str, str], arrays: tuple[str, ...]
) -> None:
    assert required_arrays(EmbedConfig.model_validate(fields), DECODER) == arrays


@pytest.mark.parametrize(
    ("name", "n_layers", "blocks"),
    [
        ("va-llama-2-7b", 32, (20, 21, 22, 23, 24, 25, 26, 27)),
        ("va-llama-2-7b-from-0", 32, (21, 22, 23, 24, 25, 26, 27, 28)),
        ("va-qwen3-8b", 36, (26, 27, 29, 30, 31)),
        ("va-qwen3-8b-from-0", 36, (27, 28, 30, 31, 32)),
    ],
)
def test_a_name_of_layers_is_its_blocks_in_keys_too(
    name: str, n_layers: int, blocks: tuple[int, ...]
) -> None:
    config = EmbedConfig.model_validate({"method": "va", "layers": name})
    assert layers_of(config, DECODER.model_copy(update={"n_layers": n_layers})) == blocks
    assert name not in str(config.model_dump())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layers": "deep"}, "'deep' is not a layer"),
        ({"layers": "auto,3"}, "'auto' is not a layer"),
        ({"layers": "best,3"}, "'best' is not a layer"),
        ({"layers": ""}, "'' is not a layer"),
        ({"layers": "3", "chosen_by": "pearson"}, "which leaves nothing to choose"),
        ({"layers": "auto", "chosen_by": "kendall"}, "chosen_by"),
        ({"method": "hs", "of": "values"}, "use method va"),
        ({"method": "median"}, "weighted_mean"),
        ({"whitening": {"n_components": 0}}, "n_components"),
        ({"arrays": ["hidden/1"]}, "arrays"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EmbedConfig.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "va", "layers": "0"}, "values 1 to 4"),
        ({"method": "wva", "layers": "final"}, "belong to blocks, 1 to 4"),
        ({"method": "mean", "layers": "5"}, "hidden 0 to 4 and final"),
    ],
)
def test_layers_that_a_backbone_does_not_have_are_refused(
    fields: dict[str, str], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        required_arrays(EmbedConfig.model_validate(fields), DECODER)

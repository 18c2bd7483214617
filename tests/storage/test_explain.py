from pathlib import Path

import pytest

from permafrost.storage.artifacts import MANIFEST, ArtifactSpec, ArtifactStore, parse_ref
from permafrost.storage.explain import Explainer, explain
from permafrost.storage.keys import KEY_VERSION
from permafrost.storage.sealed import sealed_bytes
from tests.storage.small_store import IDENTITY, new_store

KEY_A, KEY_B = "a" * 32, "b" * 32


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def _publish(store: ArtifactStore, spec: ArtifactSpec) -> str:
    with store.publishing(spec, {}) as draft:
        (draft.folder / "x").write_text("x")
    return str(spec.ref)


def _spec(stage: str = "fit", lr: float = 0.1, **fields: object) -> ArtifactSpec:
    config = {"lr": lr, "head": {"kind": "glot", "layers": [1, 2]}}
    return ArtifactSpec.model_validate({"stage": stage, "config": config, **fields})


def test_the_first_of_its_stage_never_ran(store: ArtifactStore) -> None:
    _publish(store, _spec("score"))
    found = explain(store, _spec())
    assert found.headline == "never ran before"
    assert found.as_json() == {"nearest": None, "differences": []}


def test_a_changed_config_is_named_with_both_values(store: ArtifactStore) -> None:
    ref = _publish(store, _spec())
    found = explain(store, _spec(lr=0.2))
    assert found.headline == "config.lr: was 0.1, now 0.2"
    assert found.as_json() == {
        "nearest": ref,
        "differences": [{"path": "config.lr", "old": 0.1, "new": 0.2}],
    }


def test_config_comes_before_code_and_the_rest_is_counted(store: ArtifactStore) -> None:
    _publish(store, _spec(code={"m:f": "1"}))
    assert explain(store, _spec(lr=0.2, code={"m:f": "2"})).headline == (
        "config.lr: was 0.1, now 0.2 (and 1 more)"
    )


def test_changed_code_names_the_function(store: ArtifactStore) -> None:
    _publish(
        store, _spec(code={"permafrost.stages.fit:loss": "1", "permafrost.stages.fit:fit": "1"})
    )
    found = explain(
        store, _spec(code={"permafrost.stages.fit:loss": "2", "permafrost.stages.fit:fit": "1"})
    )
    assert [d.path for d in found.differences] == ["code.permafrost.stages.fit:loss"]


def test_a_changed_input_is_followed_to_the_field_where_it_began(store: ArtifactStore) -> None:
    corpora = [_publish(store, _spec("corpus", lr)) for lr in (0.1, 0.7)]
    fits = [_publish(store, _spec("fit", inputs=(c,))) for c in corpora]
    _publish(store, _spec("score", inputs=(fits[0],)))
    found = explain(store, _spec("score", inputs=(fits[1],)))
    assert found.headline == "inputs[0] -> inputs[0] -> config.lr: was 0.1, now 0.7"


def test_an_input_that_is_gone_or_damaged_is_shown_as_it_is(store: ArtifactStore) -> None:
    first = _publish(store, _spec("corpus", 0.1))
    second = _spec("corpus", 0.7).ref
    _publish(store, _spec(inputs=(first,)))
    expected = f"inputs[0]: was {first!r}, now {str(second)!r}"
    assert explain(store, _spec(inputs=(str(second),))).headline == expected
    (store.root / first / "artifact.json").write_text("{")
    _publish(store, _spec("corpus", 0.7))
    assert explain(store, _spec(inputs=(str(second),))).headline == expected


def test_features_of_another_store_name_the_field_of_its_identity(
    store: ArtifactStore, tmp_path: Path
) -> None:
    longer = IDENTITY.model_copy(update={"max_length": 64})
    old, new = (new_store(tmp_path, identity=i).store.store_id for i in (IDENTITY, longer))
    _publish(store, _spec(inputs=(f"features/{old}/hidden/1",)))
    found = explain(store, _spec(inputs=(f"features/{new}/hidden/1",)))
    assert found.headline == "inputs[0] -> max_length: was 32, now 64"


def test_another_array_of_the_same_store_is_named(store: ArtifactStore, tmp_path: Path) -> None:
    name = f"features/{new_store(tmp_path).store.store_id}/hidden"
    _publish(store, _spec(inputs=(f"{name}/1",)))
    headline = explain(store, _spec(inputs=(f"{name}/2",))).headline
    assert headline == f"inputs[0]: was '{name}/1', now '{name}/2'"


def test_a_store_that_is_gone_is_shown_as_it_is(store: ArtifactStore) -> None:
    _publish(store, _spec(inputs=(f"features/{KEY_A}/hidden/1",)))
    found = explain(store, _spec(inputs=(f"features/{KEY_B}/hidden/1",)))
    assert found.differences[0].new == f"features/{KEY_B}/hidden/1"


def test_the_nearest_artifact_is_the_one_with_the_fewest_differences(store: ArtifactStore) -> None:
    near = _publish(store, _spec(lr=0.1))
    _publish(store, _spec(lr=0.3, code={"m:f": "1"}))
    found = explain(store, _spec(lr=0.2))
    assert found.nearest is not None
    assert str(found.nearest.ref) == near


def test_a_published_artifact_is_compared_with_those_before_it(store: ArtifactStore) -> None:
    first = _publish(store, _spec(lr=0.1))
    second = _spec(lr=0.2)
    _publish(store, second)
    _publish(store, _spec(lr=0.3))
    found = explain(store, second, before=store.manifest(second.ref))
    assert found.nearest is not None
    assert str(found.nearest.ref) == first


def test_an_added_field_is_said_to_have_been_absent(store: ArtifactStore) -> None:
    _publish(store, _spec())
    wider = _spec()
    wider = wider.model_copy(update={"config": {**wider.config, "epochs": 3}})
    assert explain(store, wider).headline == "config.epochs: was '(absent)', now 3"


def test_what_an_earlier_version_made_is_told_by_its_version(store: ArtifactStore) -> None:
    spec = _spec(code={"stages.fit:loss": "1"})
    ref = _publish(store, spec)
    manifest = store.manifest(parse_ref(ref))
    old = spec.ref_of(KEY_VERSION - 1)
    older = manifest.model_copy(update={"key": old.key, "key_version": KEY_VERSION - 1})
    folder = store.folder(parse_ref(ref))
    folder.rename(folder.with_name(old.key))
    (folder.with_name(old.key) / MANIFEST).write_bytes(sealed_bytes(older.model_dump(mode="json")))
    now = _spec(lr=0.2, code={"permafrost.stages.fit:loss": "1"})
    assert [str(d) for d in explain(store, now).differences] == [
        f"version of keys: was {KEY_VERSION - 1}, now {KEY_VERSION}",
        "config.lr: was 0.1, now 0.2",
    ]


def test_a_plan_reads_what_is_published_once(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        _publish(store, _spec(lr=number, code={"m:f": "1"}))
    read: list[str] = []
    monkeypatch.setattr(
        ArtifactStore,
        "manifest",
        lambda self, ref, plain=ArtifactStore.manifest: read.append(str(ref)) or plain(self, ref),
    )
    explainer = Explainer(store)
    for number in range(40):
        found = explainer.why(_spec(lr=number, code={"m:f": "2"}))
        assert found.headline == "code.m:f: was '1', now '2'", "its own earlier self is the nearest"
    assert len(read) == 40


def test_what_differs_inside_an_input_decides_which_is_nearest(store: ArtifactStore) -> None:
    own = _publish(store, _spec(lr=0.1))
    other = _publish(store, _spec(lr=0.3, code={"m:f": "1"}))
    for fit in (own, other):
        _publish(store, _spec("score", inputs=(fit,)))
    changed = _spec(lr=0.2)
    planned = {str(changed.ref): changed}
    found = Explainer(store, planned).why(_spec("score", inputs=(str(changed.ref),)))
    assert found.headline == "inputs[0] -> config.lr: was 0.1, now 0.2"

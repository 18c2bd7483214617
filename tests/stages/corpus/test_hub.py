"""Datasets: local folders through `datasets` itself, the hub through a stand-in for its client."""

import csv
import os
import shutil
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.corpus.columns import Classification, Similarity, Unlabelled
from permafrost.stages.corpus.sources import hub
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.corpus.sources.hub import HubCorpus, open_split
from permafrost.stages.corpus.splits import DevFromTrain
from permafrost.storage.errors import ChangedError, InputError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TASK = Classification(text="sentence")


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def features() -> datasets.Features:
    names = datasets.ClassLabel(names=["positive", "negative"])
    return datasets.Features({"sentence": datasets.Value("string"), "label": names})


def dataset(labels: list[int]) -> datasets.Dataset:
    rows = {"sentence": [f"text {i}" for i in range(len(labels))], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What `DatasetDict.save_to_disk` writes."""
    splits = {"train": dataset([0, 1, 1, 0]), "validation": dataset([1, 0])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data files as they lie in a dataset repository."""
    data = tmp_path / "plain"
    data.mkdir()
    for split, texts in (("train", ["a", "b", "c", "d"]), ("test", ["e", "f"])):
        table = pa.table({"sentence": texts, "label": [0, 1] * (len(texts) // 2)})
        pq.write_table(table, data / f"{split}.parquet")
    return data


def config(path: Path | str, splits: dict[str, str], **fields: Any) -> HubCorpus:
    return HubCorpus(path=str(path), splits=splits, **{"task": TASK, **fields})


def test_a_saved_dataset_keeps_the_order_of_its_declared_classes(saved: Path) -> None:
    corpus = config(saved, {"train": "train", "test": "validation"}).build()
    assert corpus.label_names == ("positive", "negative")
    assert corpus.examples.to_pydict() == {
        "split": ["train"] * 4 + ["test"] * 2,
        "text": [0, 1, 2, 3, 0, 1],
        "text_pair": [None] * 6,
        "label": [0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
    }


def test_a_single_saved_dataset_is_its_only_split(tmp_path: Path) -> None:
    dataset([0, 1]).save_to_disk(tmp_path / "one")
    corpus = config(tmp_path / "one", {"train": "train"}).build()
    assert corpus.texts == ("text 0", "text 1")


def test_slices_of_a_saved_dataset_are_read_as_those_of_a_folder(tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"text": [*"abcdef"], "label": [0, 1] * 3})
    datasets.DatasetDict({"train": made, "more": made.select([5])}).save_to_disk(tmp_path / "s")
    slices = {
        "train[:2]": "ab",
        "train[50%:]": "def",
        "train[-2:]": "ef",
        "train[1:3]+more": "bcf",
    }
    for theirs, texts in slices.items():
        loaded = open_split(str(tmp_path / "s"), "default", "main", theirs)
        assert "".join(loaded["text"]) == texts
    for wrong in ("test[:2]", "train[:2"):
        with pytest.raises(InputError, match="its splits are 'train', 'more'"):
            open_split(str(tmp_path / "s"), "default", "main", wrong)


def test_a_part_without_rows_is_refused_with_their_number(saved: Path) -> None:
    for theirs in ("train[100:]", "validation+train[3:2]"):
        with pytest.raises(InputError, match=r"\]' selects no rows of 'train', .* rows is 4$"):
            config(saved, {"train": "train", "test": theirs}).build()


@pytest.mark.parametrize("kept", ["{}", "[1]"])
def test_a_broken_list_of_saved_splits_is_refused(saved: Path, kept: str) -> None:
    (saved / "dataset_dict.json").write_text(kept)
    with pytest.raises(InputError, match=r"cannot be loaded: .* a JSON file was edited \(\w+Error"):
        config(saved, {"train": "train"}).build()


def test_a_saved_dataset_with_an_empty_split_is_refused(tmp_path: Path) -> None:
    splits = {"train": dataset([0, 1]), "test": dataset([])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "s")
    with pytest.raises(InputError, match=r"cannot be loaded: .* where a split has no rows"):
        config(tmp_path / "s", {"train": "train"}).build()


def test_a_saved_dataset_has_no_other_config(saved: Path) -> None:
    some = config(saved, {"train": "train"}, config="small")
    for refused in (some.facts, some.build):
        with pytest.raises(InputError, match=r"config is 'small', but .*saved is a folder from"):
            refused()


CSV_LABELS = {
    "zeros": (["01", "1", "2", "1"], ["1", "01"]),
    "exponents": (["1e2", "100", "2", "2"], ["100", "1e2"]),
    "missing": (["NA", "None", "a", "a"], ["NA", "a"]),
    "one split": (["1", "2", "b", "10"], ["1", "2"]),
    "numbers": (["1", "2", "10", "2.0"], ["10", "1.0"]),
    "truth": (["True", "false", "True", "false"], ["true", "false"]),
    "truth in digits": (["True", "False", "True", "False"], ["0", "1"]),
    "a split's own zeros": (["1", "2", "1", "02"], ["1", "2"]),
    "text elsewhere": (["01", "2", " b", "01"], ["01", "2"]),
    "quoted": (['a "x",\ny', "b", "b", "c"], ["b", "b"]),
}


def test_labels_of_a_csv_folder_are_those_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "plain").mkdir()
    for i, split in enumerate(("train", "test")):
        rows = zip(*(given[i] for given in CSV_LABELS.values()), strict=True)
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerow(["sentence", *CSV_LABELS])
            csv.writer(file).writerows(("NA", *row) for row in rows)
    # Each folder is read once, for time.
    splits = {
        split: open_split(str(folder), "default", "main", split) for split in ("train", "test")
    }
    monkeypatch.setattr(hub, "open_split", lambda _path, _config, _revision, theirs: splits[theirs])
    monkeypatch.setattr(hub, "is_untyped", lambda *_: True)
    files = {split: str(folder / f"{split}.csv") for split in splits}
    for label in CSV_LABELS:
        task = Classification(text="sentence", label=label)
        corpus = config(folder, {split: split for split in splits}, task=task).build()
        expected = FilesCorpus(files=files, task=task).build()
        assert corpus.label_names == expected.label_names
        assert corpus.examples.equals(expected.examples)
        assert corpus.texts == expected.texts


def test_rows_of_one_csv_have_their_classes_however_it_is_cut(tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    labels = ["1", "2", "1", "2", "01", "02"]
    rows = "".join(f"text {i},{label}\n" for i, label in enumerate(labels))
    (plain / "train.csv").write_text(f"text,label\n{rows}")
    cut = config(plain, {"train": "train[:4]", "test": "train[4:]"}, task=Classification())
    with pytest.raises(InputError, match=r"label '01' .*never occurs in train, which has '1', '2'"):
        cut.build()


def test_the_split_whose_grades_are_no_numbers_is_named(tmp_path: Path) -> None:
    (plain := tmp_path / "plain").mkdir()
    (plain / "train.csv").write_text("text,text_pair,label\na,b,0.5\nc,d,1\n")
    (plain / "test.csv").write_text("text,text_pair,label\na,b,2\nc,d,high\n")
    with pytest.raises(InputError, match=r"of split 'test' of .* holds text \(row 2: 'high'\)"):
        config(plain, {"train": "train", "test": "test"}, task=Similarity()).build()


def test_labels_of_csv_may_differ_in_kind_between_splits(tmp_path: Path) -> None:
    for split, given in (("train", ["1", "1"]), ("test", ["1", "b"])):
        rows = [f"{split} {i};{label}" for i, label in enumerate(given)]
        (tmp_path / f"{split}.csv").write_text("\n".join([";label", *rows, ""]))
    lines = ["---", "configs:", "- config_name: default", '  sep: ";"', "  data_files:"]
    for split in ("train", "test"):
        lines += [f"  - split: {split}", f"    path: {split}.csv"]
    (tmp_path / "README.md").write_text("\n".join([*lines, "---", ""]))
    # The name that pandas gives a column without one.
    task = Classification(text="Unnamed: 0")
    corpus = config(tmp_path, {"train": "test", "test": "train"}, task=task).build()
    assert corpus.label_names == ("1", "b")
    assert corpus.examples["label"].to_pylist() == [0, 1, 0, 0]


def test_types_that_a_card_declares_stay(tmp_path: Path) -> None:
    folder = carded(tmp_path / "data", ["alpha", "beta", "gamma"])
    (folder / "train.csv").write_text("sentence,label\nalpha,01\nbeta,1\ngamma,2\n")
    declared = ["dataset_info:", "  features:"]
    for name, kind in (("sentence", "string"), ("label", "int64")):
        declared += [f"  - name: {name}", f"    dtype: {kind}"]
    card = (folder / "README.md").read_text().replace("---\n", "\n".join(["---", *declared, ""]), 1)
    (folder / "README.md").write_text(card)
    assert config(folder, {"train": "train"}).build().label_names == ("1", "2")


def test_a_folder_of_data_files_is_read_by_split_with_slices(folder: Path) -> None:
    corpus = config(folder, {"train": "train[:3]", "test": "test"}).build()
    assert corpus.texts == ("a", "b", "c", "e", "f")
    assert corpus.label_names == ("0", "1")


@pytest.mark.parametrize("theirs", ["train[3:2]", "train[9:]", "test+train[3:1]"])
def test_a_slice_without_rows_of_a_folder_is_refused_with_their_number(
    folder: Path, theirs: str
) -> None:
    with pytest.raises(InputError, match=r"\]' selects no rows of 'train', .* rows is 4$"):
        config(folder, {"train": "train", "test": theirs}).build()


def test_dev_can_come_from_train(folder: Path) -> None:
    dev = DevFromTrain(fraction=0.25)
    corpus = config(folder, {"train": "train", "test": "test"}, dev=dev).build()
    assert [corpus.split(s).num_rows for s in ("train", "dev", "test")] == [3, 1, 2]


def test_unknown_splits_columns_and_folders_are_refused(saved: Path, folder: Path) -> None:
    with pytest.raises(InputError, match=r"split 'test' .* its splits are 'train', 'validation'"):
        config(saved, {"test": "test"}).build()
    with pytest.raises(InputError, match=r"(?s)split 'dev' of the dataset .* cannot be loaded"):
        config(folder, {"dev": "dev"}).build()
    with pytest.raises(InputError, match=r"no column 'body'; its columns are 'sentence', 'label'"):
        config(saved, {"train": "train"}, task=Unlabelled(text="body")).build()


def test_a_broken_data_file_is_refused(folder: Path) -> None:
    (folder / "train.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(InputError, match=r"(?s)split 'train' of the dataset .* cannot be loaded"):
        config(folder, {"train": "train"}).build()


def test_hidden_labels_are_refused(tmp_path: Path) -> None:
    dataset([-1, -1]).save_to_disk(tmp_path / "hidden")
    with pytest.raises(InputError, match=r"row 1 .* label -1 .* none of the 2 declared .* hidden"):
        config(tmp_path / "hidden", {"train": "train"}).build()


def test_facts_of_a_folder_are_its_bytes(folder: Path, tmp_path: Path) -> None:
    splits = {"train": "train"}
    facts = config(folder, splits).facts()
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copy)
    (copy / ".hidden").write_text("not data")
    assert config(copy, splits).facts() == facts
    assert config(copy, {"train": "test"}).facts() != facts
    pq.write_table(pa.table({"sentence": ["x"], "label": [0]}), copy / "train.parquet")
    assert config(copy, splits).facts() != facts


def carded(folder: Path, texts: list[str], data_files: str = "train.csv") -> Path:
    """A clone of a dataset's repository, with the card that `push_to_hub` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", "configs:", "- config_name: default", "  data_files:", "  - split: train"]
    (folder / "README.md").write_text("\n".join([*lines, f"    path: {data_files}", "---", ""]))
    rows = [f"{text},{i % 2}" for i, text in enumerate(texts)]
    (folder / "train.csv").write_text("\n".join(["sentence,label", *rows, ""]))
    return folder


def texts_of(path: Path) -> tuple[str, ...]:
    return config(path, {"train": "train"}).build().texts


def test_an_edited_folder_gives_its_new_texts(tmp_path: Path) -> None:
    """`datasets` by itself finds what it made of a folder by its last name and the card."""
    folder = carded(tmp_path / "v1" / "data", ["alpha", "beta"])
    assert texts_of(folder) == ("alpha", "beta")
    carded(folder, ["omega", "psi"])
    assert texts_of(folder) == ("omega", "psi")
    other = carded(tmp_path / "v2" / "data", ["gamma", "delta"])
    assert texts_of(other) == ("gamma", "delta")
    carded(folder, ["alpha", "beta"])
    assert texts_of(folder) == ("alpha", "beta")


def test_a_folder_whose_files_keep_their_time_gives_its_new_texts(folder: Path) -> None:
    assert texts_of(folder) == ("a", "b", "c", "d")
    path = folder / "train.parquet"
    before = path.stat()
    pq.write_table(pa.table({"sentence": ["p", "q", "r", "s"], "label": [0, 1, 0, 1]}), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert texts_of(folder) == ("p", "q", "r", "s")


def test_files_behind_a_link_are_among_the_facts(tmp_path: Path) -> None:
    carded(tmp_path / "far", ["alpha", "beta"])
    folder = carded(tmp_path / "data", ["unread", "too"], "part/train.csv")
    (folder / "part").symlink_to(tmp_path / "far")
    (folder / "part" / "round").symlink_to(folder)
    # Another name of the same files, which is no circle.
    (folder / "also").symlink_to(tmp_path / "far")
    splits = {"train": "train"}
    facts = config(folder, splits).facts()
    assert texts_of(folder) == ("alpha", "beta")
    carded(tmp_path / "far", ["omega", "psi"])
    assert config(folder, splits).facts() != facts
    assert texts_of(folder) == ("omega", "psi")


def test_files_may_be_named_by_either_of_two_links(tmp_path: Path) -> None:
    carded(tmp_path / "far", ["alpha", "beta"])
    for name in ("a", "b"):
        folder = carded(tmp_path / name / "data", ["unread", "too"], f"{name}/train.csv")
        for link in ("a", "b"):
            (folder / link).symlink_to(tmp_path / "far")
        assert texts_of(folder) == ("alpha", "beta")


def test_a_data_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    carded(tmp_path / "elsewhere", ["alpha", "beta"])
    folder = carded(tmp_path / "data", ["unread", "too"], "../elsewhere/train.csv")
    with pytest.raises(
        InputError, match=r"names the data file .*elsewhere/train.csv'.* no file of"
    ):
        texts_of(folder)
    assert list((tmp_path / "cache" / "permafrost").iterdir()) == []


def test_a_folder_that_changes_while_it_is_read_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = datasets.DatasetBuilder.download_and_prepare

    def prepare(self: Any, *args: Any, **fields: Any) -> None:
        real(self, *args, **fields)
        (folder / "more.txt").write_text("x")

    monkeypatch.setattr(datasets.DatasetBuilder, "download_and_prepare", prepare)
    with pytest.raises(ChangedError, match="changed while it was read"):
        texts_of(folder)
    assert list((tmp_path / "cache" / "permafrost").iterdir()) == []


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no files"):
        config(tmp_path / "empty", {"train": "train"}).facts()


class Info:
    """What the hub answers."""

    sha = COMMIT


def test_a_branch_becomes_a_commit_in_the_facts_and_for_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    loaded: list[dict[str, Any]] = []

    def dataset_info(self: object, path: str, *, revision: str) -> Info:
        asked.append((path, revision))
        return Info()

    real = datasets.load_dataset_builder
    (tmp_path / "repository").mkdir()
    dataset([0, 1]).to_parquet(tmp_path / "repository" / "train.parquet")

    def load_dataset_builder(path: str, name: str | None, **fields: Any) -> Any:
        loaded.append({"path": path, "name": name, **fields})
        return real(str(tmp_path / "repository"))

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset_builder", load_dataset_builder)
    some = config("owner/name", {"train": "train"}, config="small", revision="v1")
    assert some.facts()["source"] == {"path": "owner/name", "commit": COMMIT}
    assert some.build().label_names == ("positive", "negative")
    assert asked == [("owner/name", "v1")] * 2
    assert loaded == [{"path": "owner/name", "name": "small", "revision": COMMIT}]
    with pytest.raises(InputError, match=r"'train\[1:0\]' selects no rows of 'train'"):
        config("owner/name", {"train": "train[1:0]"}, revision=COMMIT).build()


def test_a_commit_is_taken_without_asking_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def dataset_info(self: object, path: str, *, revision: str) -> Info:
        raise AssertionError("asked")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    facts = config("owner/name", {"train": "train"}, revision=COMMIT[::-1]).facts()
    assert facts["source"]["commit"] == COMMIT[::-1]


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def dataset_info(self: object, path: str, *, revision: str) -> Info:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with pytest.raises(InputError, match=r"no route to host.*40-digit commit .* local folder"):
        config("owner/name", {"train": "train"}).facts()


def test_a_name_that_cannot_be_a_dataset_is_refused() -> None:
    with pytest.raises(InputError, match="'no/such/folder' at 'main' is neither a folder"):
        config("no/such/folder", {"train": "train"}).facts()

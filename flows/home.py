"""Homes: a folder, or the local replica of a home on an object store, and access to what it holds."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_to_bytes

from permafrost.flows.holding import holding_store
from permafrost.flows.records.history import Run, histories, read_history
from permafrost.flows.records.pins import pin, unpin
from permafrost.flows.records.runs import RunRecord, latest_report, latest_runs
from permafrost.stages.corpus.given_texts import listed
from permafrost.storage.adapted_stores import backbone_of_store
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.durable import read_json
from permafrost.storage.entity_tags import require_no_replica
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.array_names import patterns_of
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.keys import text_digest
from permafrost.storage.object_stores import HUB
from permafrost.storage.paths import HOME_BYTES, checked_path, writable_cache_folder
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted
from permafrost.storage.readers import FeatureReader, open_reader
from permafrost.storage.removal import removal_named
from permafrost.storage.replica import attach, public_name, replica_of

if TYPE_CHECKING:
    # An encoder needs torch, whose import takes seconds; most of a home can be read without it.
    from transformers import PreTrainedTokenizerBase

    from permafrost.flows.disk.array_drops import DropPlan
    from permafrost.flows.disk.dropping import Dropped
    from permafrost.flows.sharing import Copied
    from permafrost.stages.encoder.encoder import Encoder
    from permafrost.stages.encoder.graph_text_encoder import GraphTextEncoder
    from permafrost.stages.encoder.tuned import TunedEncoder

FILE = "file://"


class Home:
    """A home: its feature stores, artifacts and runs, and encoders and readers for them.

    Everything is read on request. A home on an object store is brought up to date when it is opened. It is
    pickled as its URL, so that another process opens the same home.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        """Its folder on this machine; for a home on an object store the folder that mirrors it."""

    def __repr__(self) -> str:
        return f"permafrost.open({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.url,)

    @property
    def url(self) -> str:
        """Its URL: `s3://bucket/prefix`, or `file:///folder`."""
        return home_url(self.folder)

    @property
    def artifacts(self) -> ArtifactStore:
        """All published artifacts: `artifacts.refs("fit")` are the fits, oldest first, also of controls."""
        return ArtifactStore(self.folder)

    def stores(self) -> list[FeatureStore]:
        """Every feature store, by id.

        Raises:
            CorruptDataError: one of them cannot be opened.
        """
        return all_stores(self.folder)

    def runs(self) -> list[RunRecord]:
        """The latest complete run of every experiment, by the experiment's name.

        Raises:
            CorruptDataError: a record is damaged.
        """
        return list(latest_runs(self.folder))

    def report(self, experiment: str) -> Path:
        """The path of the report of an experiment's latest complete run; figures and tables are beside it.

        Raises:
            NotFoundError: there is no such run, or its report is missing.
            CorruptDataError: the run's record or a file of the report is damaged.
        """
        return self.artifacts.open(latest_report(self.folder, experiment)) / "report.html"

    def results(self, experiment: str) -> dict[str, Any]:
        """The numbers of the report, from `summary.json`. Raises as `report`."""
        with removal_named(self.folder):
            return read_json(self.report(experiment).with_name("summary.json"))

    def head(
        self, experiment: str, method: str, *, task: str | None = None, seed: int | None = None
    ) -> ArtifactRef:
        """The trained head that an experiment's latest complete run reports: of a grid the one dev chose.
        Task and seed are needed where the method has several.

        Raises:
            NotFoundError: there is no such run, method, task or seed, or its report is missing.
            InputError: the method is not trained, several fits are meant, or the seed is no whole number.
        """
        from permafrost.flows.records.chosen_fits import chosen_fit

        return chosen_fit(self.folder, experiment, method, task, seed)

    def history(self, experiment: str) -> tuple[Run, ...]:
        """Every run of an experiment, by number, also those that failed or found nothing to do.

        Raises:
            CorruptDataError: a record is damaged.
        """
        found = read_history(self.folder, experiment)
        for _, problem in found.problems:
            raise CorruptDataError(problem)
        return found.runs

    def tokenizer(
        self, store: str | None = None, *, backbone: str | None = None
    ) -> "PreTrainedTokenizerBase":
        """The tokenizer whose ids a feature store has in `token_ids`; it neither truncates nor pads.

        Args:
            store: beginning of a store's id, if there are several.
            backbone: where the backbone is now, if it moved.

        Raises:
            NotFoundError: there is no such store.
            InputError: there are several, or the backbone cannot be found.
            IdentityMismatchError: the backbone is not the one of the store.
        """
        from permafrost.stages.extraction.target import target_of_store

        named = [s for s in self.stores() if s.store_id.startswith(store or "")]
        if len(named) != 1:
            what = f"no store that begins with {quoted(store)}" if store else "no feature store"
            ids = ", ".join(s.store_id[:12] for s in named or self.stores()) or "none"
            if not named:
                raise NotFoundError(f"{public_name(self.folder)} has {what}; there are {ids}")
            raise InputError(f"{len(named)} feature stores fit; give store= one of {ids}")
        where = backbone_of_store(named[0], backbone)
        return target_of_store(named[0].record, (), where).tokenizer

    def encoder(
        self, head: str | ArtifactRef, *, backbone: str | None = None, device: str = "auto"
    ) -> "Encoder | TunedEncoder | GraphTextEncoder":
        """Load a trained head with the backbone that it was trained on. Its `encode` and `predict` store
        nothing.

        Args:
            head: what `head` gives, or a name as `permafrost ls` lists it: `fit/<key>` or the beginning of a
                key; one trained with its backbone, `finetune/<key>`; a linear classifier, `linear/<key>`;
                or a graph-text model, also `finetune/<key>`, whose `encode` takes `graphs` as
                `permafrost.encode` does, and which does not predict.
            backbone: where the backbone is now, if it moved.
            device: `auto` (the first GPU, else the CPU) or a torch device.

        Raises:
            NotFoundError: there is no such artifact, or its feature store is missing.
            InputError: it is not a fit, or a head that has no vector for a single text.
            IdentityMismatchError: the backbone is not the one the head was trained on; the message has both
                digests.
            RemovedError: the head was removed while it was being loaded.
        """
        from permafrost.stages.encoder.graph_text import FINETUNE
        from permafrost.stages.encoder.graph_text_encoder import load_graph_text
        from permafrost.stages.encoder.load import load_encoder
        from permafrost.stages.encoder.tuned import is_tuned_head, load_tuned

        with removal_named(self.folder):
            if is_tuned_head(self.folder, str(head)):
                return load_tuned(self.folder, str(head), backbone, device=device)
            if self.artifacts.find(str(head)).stage == FINETUNE:
                return load_graph_text(self.folder, str(head), backbone, device=device)
            return load_encoder(self.folder, str(head), backbone, device=device)

    def reader(
        self,
        array: str,
        texts: Iterable[str],
        *,
        store: str | None = None,
        tokens: Literal["span", "all"] = "span",
        memory_bytes: int = 1 << 30,
    ) -> FeatureReader:
        """Stored features of these texts, in that order: `in_order` and `shuffled` give batches.

        Args:
            array: for example `hidden/6`.
            texts: texts that are stored; repeats are allowed.
            store: beginning of a store's id, if several hold the texts (other recipes, other precision).
            tokens: `span` gives the tokens that poolings run over, `all` every token of the input.
            memory_bytes: the array is held in memory up to this size, else read in windows of segments.

        Raises:
            NotFoundError: no store holds this array of all texts.
            InputError: several do, `array` is no array's name, `texts` no list of texts, or `tokens` another.
        """
        texts = listed(texts, "read")
        digests = [text_digest(text) for text in texts]
        with removal_named(self.folder):
            holding = holding_store(self.folder, array, texts, digests, store)
            return open_reader(
                holding, array, digests, budget_bytes=memory_bytes, tokens=tokens, texts=texts
            )

    def pull(
        self,
        source: "str | PathLike[str] | Home",
        store: str | None = None,
        *,
        arrays: str | Sequence[str] = "*",
        corpus: str | None = None,
        dry_run: bool = False,
    ) -> "Copied":
        """Copy what this home lacks of another home's feature store; what is there already stays as it is.

        Args:
            source: the other home: a folder, a URL, or `hf://datasets/OWNER/NAME`.
            store: beginning of the store's id; not needed where there is only one.
            arrays: names of arrays, or patterns of them: `hidden/6`, `["hidden/*", "values/3"]`.
            corpus: a task of the other home, or `corpus/<key>`: only segments that hold its texts, whole,
                and the corpus itself.
            dry_run: only find out what would be copied, or why nothing can be.

        Returns:
            What was copied: `as_json()` has counts and bytes.

        Raises:
            NotFoundError: there is no such home, store, array or corpus.
            InputError: a name fits several, or both homes are the same.
            CorruptDataError: something in the source is not what its receipt says.
            StoreBusyError: another process writes to this home's store.
        """
        if isinstance(source, str) and source.startswith(HUB):
            from permafrost.flows.dataset_folder import downloaded

            source = downloaded(source)
        there = open_existing_home(source, SilentProgress())
        return _shared(there, self.folder, store, arrays, corpus, dry_run)

    def push(
        self,
        target: "str | PathLike[str] | Home",
        store: str | None = None,
        *,
        arrays: str | Sequence[str] = "*",
        corpus: str | None = None,
        form: Literal["home", "dataset"] = "home",
        dry_run: bool = False,
    ) -> "Copied":
        """Copy what another home lacks of a feature store of this home to there. Otherwise as `pull`.

        As a `dataset` the other home, a folder, gets a card with which it can be uploaded to the hub.
        """
        there = open_home(target, SilentProgress())
        return _shared(self.folder, there, store, arrays, corpus, dry_run, form)

    def gc(
        self,
        *,
        keep: Sequence[str] = (),
        older_than: str | None = None,
        quota: str | None = None,
        dry_run: bool = False,
    ) -> "list[Dropped]":
        """Remove what neither the latest run of an experiment nor a pinned one, nor one that may be under way
        uses.

        Args:
            keep: artifacts, stores and runs (`mine@2`) to keep as well.
            older_than: only what no run has used for so long: `12h`, `30d`, `8w`.
            quota: only as much as brings the home down to this size, oldest use first: `200GB`.
            dry_run: only find out what would be removed.

        Returns:
            What was removed: path under the home, bytes, what it was of.

        Raises:
            InputError: an age or a quota is not written so, or no run is recorded and nothing is named.
            NotFoundError: a name in `keep` matches nothing.
            CorruptDataError: the record of a run is damaged, so that it is not known what is in use.
            StoreBusyError: another process is removing something of this home.
        """
        from permafrost.flows.disk.dropping import dropped
        from permafrost.flows.disk.garbage import collect
        from permafrost.flows.disk.limits import parse_limits

        garbage = collect(self.folder, keep, limits=parse_limits(older_than, quota))
        drops = dropped(self.folder, garbage, histories(self.folder))
        if dry_run:
            return drops
        stays = {path.relative_to(self.folder).as_posix() for path in garbage.remove()}
        return [drop for drop in drops if drop.path not in stays]

    def drop(
        self,
        store: str | None = None,
        *,
        arrays: str | Sequence[str],
        used: bool = False,
        dry_run: bool = False,
    ) -> "DropPlan":
        """Drop layers or kinds from a feature store and free their bytes; an extraction makes them again.

        Args:
            store: beginning of the store's id; not needed where there is only one.
            arrays: names of arrays, or patterns of them: `hidden/3`, `["hidden/3", "values/*"]`.
            used: also arrays that a latest, pinned or unfinished run read.
            dry_run: only find out what would be dropped.

        Returns:
            What was dropped: `as_json()` has arrays, bytes and the runs that read them.

        Raises:
            NotFoundError: there is no such store or array.
            InputError: a name fits several, or a run read it and `used` is not given.
            StoreBusyError: a run that is going on reads it, or another process writes to the store.
        """
        from permafrost.flows.disk.array_drops import drop_planned, plan_drop

        plan = plan_drop(self.folder, store, patterns_of(arrays))
        allowed = "used" if used else "unused"
        return plan if dry_run else drop_planned(plan, allowed, SilentProgress())

    def pin(self, run: str) -> Run:
        """Keep what a run, `mine@2`, used from `gc`, until `unpin`.

        Raises:
            NotFoundError: there is no such run.
            InputError: it has not ended, or some of what it used is not there (any more).
        """
        return pin(self.folder, run)

    def unpin(self, run: str) -> None:
        """Let a pinned run go.

        Raises:
            NotFoundError: it is not pinned.
        """
        unpin(self.folder, run)


def _shared(
    source: Path,
    target: Path,
    store: str | None,
    arrays: str | Sequence[str],
    corpus: str | None,
    dry_run: bool,
    form: Literal["home", "dataset"] = "home",
) -> "Copied":
    from permafrost.flows.sharing import copy_between, wanted_of, would_copy

    what = source, target, wanted_of(store, arrays, corpus, form)
    if dry_run:
        return would_copy(*what, form)
    return copy_between(*what, lambda _: SilentProgress(), form=form)


def _reopened(url: str) -> Home:
    return Home(open_home(url, SilentProgress()))


def open_home(home: str | PathLike[str] | Home, progress: Progress) -> Path:
    """The folder of a home; for a URL of an object store the folder that mirrors it, brought up to date.

    Replicas are kept under PERMAFROST_CACHE or, if that is not set, in the user's cache folder.

    Raises:
        InputError: the home is a file, a replica that is not open here, or a URL that cannot be used.
    """
    if not isinstance(home, str | PathLike | Home):
        raise InputError(
            f"the home is {quoted(home)}, of type {type(home).__name__}; give a folder, or a URL such as "
            "s3://bucket/prefix"
        )
    name = home.url if isinstance(home, Home) else os.fspath(home)
    if "://" in name and not name.startswith(FILE):
        return attach(name.rstrip("/"), _replica_folder(name.rstrip("/")), progress)
    path = checked_path(_local_name(name), "the home", HOME_BYTES)
    if path.exists() and not path.is_dir():
        raise InputError(f"the home {name} is a file; give a folder")
    if replica_of(path) is None:
        require_no_replica(path)
    return path


_PARTS = ("features", "artifacts", "runs")
"""Folders of a home; one that has none of them has never been written to."""


def open_existing_home(
    home: str | PathLike[str] | Home, progress: Progress, by: str = "--home or PERMAFROST_HOME"
) -> Path:
    """As `open_home`, for what is only read; `by` is what names it, for messages.

    Raises:
        NotFoundError: there is no home.
        InputError: as `open_home`.
    """
    folder = open_home(home, progress)
    if any((folder / part).is_dir() for part in _PARTS):
        return folder
    is_there = folder.is_dir() or replica_of(folder) is not None
    why = f"it has none of {', '.join(_PARTS)}" if is_there else "no such folder"
    inside = folder / ".permafrost"
    near = f", such as {inside}" if any((inside / part).is_dir() for part in _PARTS) else ""
    raise NotFoundError(
        f"there is no home in {public_name(folder.absolute())} ({why}); name one with "
        f"{by}{near}, or make one with 'permafrost run' or 'permafrost extract'"
    )


def _local_name(name: str) -> str:
    if name.startswith(FILE):
        path = os.fsdecode(unquote_to_bytes(name.removeprefix(FILE)))
        if not path.startswith("/"):
            raise InputError(f"the home {name} names another machine; write file:///folder")
        return path
    expanded = os.path.expanduser(name)  # noqa: PTH111  # a Path would take "" for the working folder
    if name.startswith("~") and expanded == name:
        raise InputError(
            f"the home {quoted(name)} lies in the home folder of an unknown user; write "
            f"{quoted('./' + name)} for a folder of this name"
        )
    return expanded


def home_url(folder: Path) -> str:
    """The URL by which `open_home` finds the home in this folder from another process, on any machine."""
    replica = replica_of(folder)
    return folder.absolute().as_uri() if replica is None else replica.url


def _replica_folder(url: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", url)
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return writable_cache_folder() / f"{name}-{digest}"

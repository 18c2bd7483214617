"""Two, four and eight writers that begin at once on one home: one store, as one writer makes it."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import permafrost
from tests.campaign.bucket import Bucket
from tests.campaign.cases import Local, Remote
from tests.campaign.children import Child, answer_of
from tests.campaign.commands import command, require_done, require_told
from tests.campaign.files import File, files_of, is_draft
from tests.campaign.homes import Homes, differences_in_child, problems_of

MANY = (2, 4, 8)


def trial(
    homes: Homes, folder: Path, server: Bucket, known: Path, number: int, rng: random.Random
) -> dict[str, Any]:
    """Several writers of one home, which wait for each other or are refused.

    Raises:
        AssertionError: the store is not one writer's, or a writer failed for another reason.
    """
    n, remote, waits = MANY[number % len(MANY)], rng.random() < 0.3, rng.random() < 0.7
    cache = os.environ["PERMAFROST_CACHE"]
    folder.mkdir(parents=True)
    try:
        place = Remote(folder, server, known) if remote else Local(folder)
        children = list[Child]()
        for _ in range(n):
            place.lose_machine()
            flags = ("--wait",) if waits else ()
            children.append(
                Child(command("run", homes.experiment("first"), "--home", place.home, *flags))
            )
        ended = [child.ended() for child in children]
        for one in ended:
            require_told(one)
            said = " ".join(one.said.split())
            assert one.status == 0 or (not waits and "being written by" in said), one.tail
        n_done = sum(not one.status for one in ended)
        assert n_done, "each refused because of another"
        place.lose_machine()
        home = place.home
        assert (found := answer_of(lambda: problems_of(home))) == [], found[:3]
        found = differences_in_child(home, homes.first)
        assert found == [], found[:3]
        files = place.files()
        assert _written(files) == _written(files_of(homes.first)), "not the store of one writer"
        assert not [name for name in files if is_draft(name)]
        again = Child(
            lambda: dict(
                permafrost.run(homes.experiment("first"), home=home, engine="serial").computed
            )
        ).ended()
        require_done(again)
        assert again.answer == {}, f"computed again: {again.answer}"
    finally:
        os.environ["PERMAFROST_CACHE"] = cache
        shutil.rmtree(folder)
    where = "object home" if remote else "local home"
    counts = {
        "starts": n,
        f"starts of {n} at once": n,
        f"starts on {where}s": n,
        "refused": n - n_done,
    }
    return {"home": where, "waits": waits, "counts": counts}


def _written(files: dict[str, File]) -> dict[str, str]:
    """Tables of segments and shards, by content."""
    return {
        name: file.digest
        for name, file in files.items()
        if name.startswith("features/")
        and ("/segments/" in name or ("/features.zarr/" in name and "/c/" in name))
    }

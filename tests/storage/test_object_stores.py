"""Which URLs name a place in an object store."""

import pytest

from permafrost.storage.errors import InputError
from permafrost.storage.object_stores import connected


@pytest.mark.parametrize("url", ["ftp://bucket/lab", "memory://home", "file:///lab"])
def test_unknown_schemes_are_refused(url: str) -> None:
    with pytest.raises(InputError, match="unknown kind of object store"):
        connected(url)


@pytest.mark.parametrize("place", ["lab#2", "lab?x=2", "a/../lab", "lab/."])
def test_a_place_that_would_be_another_one_is_refused(place: str) -> None:
    with pytest.raises(InputError, match=r"the home 's3://bucket/.*' would be '.*' of its bucket"):
        connected(f"s3://bucket/{place}")


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3://bucket",
            "s3://bucket/",
            "s3://bucket/my lab/ü",
            "gs://bucket/lab",
            "az://container/lab",
        ),
        "abfss://container@account.dfs.core.windows.net/lab/",
    ],
)
def test_a_place_under_its_own_name_is_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    assert connected(url)

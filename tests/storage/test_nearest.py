"""Which of several names somebody may have meant."""

from permafrost.storage.nearest import near, nearest


def test_the_name_most_like_another_one_is_found_as_it_is_written() -> None:
    names = ["GLOT", "mean", "scorer"]
    assert [near(name, names) for name in ("glott", "maen", "MEAN")] == ["GLOT", "mean", "mean"]
    assert near("zzz", names) is None
    assert near("mean", []) is None


def test_a_message_names_it_only_if_there_is_one() -> None:
    assert nearest("scoer", ["mean", "scorer"]) == "; the nearest is 'scorer'"
    assert nearest("zzz", ["mean"]) == ""

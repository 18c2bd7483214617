"""What tells candidates and experiments apart, in the words of the file."""

from permafrost.flows.comparison.config_changes import config_changes
from permafrost.flows.grid_points import grid_points


def test_a_point_names_the_fields_that_differ() -> None:
    first = {"layer": "hidden/1", "optim": {"lr": 0.1, "batch": 8}, "grid_patience": None}
    second = {"layer": "hidden/1", "optim": {"lr": 0.01, "batch": 8}, "grid_patience": 2}
    third = {"layer": "hidden/2", "optim": {"lr": 0.01, "batch": 8}, "grid_patience": 2}
    assert grid_points([first, second, third]) == [
        "layer hidden/1, optim.lr 0.1",
        "layer hidden/1, optim.lr 0.01",
        "layer hidden/2, optim.lr 0.01",
    ]
    assert grid_points([first]) == [""]
    heads = [{"head": {"kind": "mean"}}, {"head": {"kind": "glot", "tau": 0.3}}]
    assert grid_points(heads) == ["head.kind mean", "head.kind glot, head.tau 0.3"]


def test_changes_are_told_by_path_with_both_values() -> None:
    a = {"seeds": [0, 1], "methods": {"GLOT": {"head": {"tau": 0.3}}, "old": {"kind": "length"}}}
    b = {"seeds": [0], "methods": {"GLOT": {"head": {"tau": 0.5}}, "new": {"kind": "length"}}}
    assert list(map(str, config_changes(a, b))) == [
        "seeds: [0, 1] in A, [0] in B",
        "methods.GLOT.head.tau: 0.3 in A, 0.5 in B",
        'methods.old.kind: "length" in A, absent in B',
        'methods.new.kind: absent in A, "length" in B',
    ]
    assert config_changes(a, a) == []

"""YAML of experiment files and of `--set`: the scalars of YAML 1.2, with limits on size and depth.

YAML 1.1, which PyYAML reads, parses `no` as false, `1:30` as 90, `010` as 8 and `2020-01-01` as a date. YAML
1.2 (section 10.3, the core schema), which we follow, parses `010` as ten and the others as text. We add the
merge key `<<` of YAML 1.1, and refuse duplicate keys and custom tags.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, cast

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import LIMIT, quoted, visible

MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file. Data belongs in separate files."""
MAX_NESTING = 40
"""Maximum nesting of lists and mappings."""
MAX_NODES = 100_000
"""Maximum number of values in a file, with aliases expanded."""

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = {
    "tag:yaml.org,2002:null": re.compile(r"~|null|Null|NULL|"),
    "tag:yaml.org,2002:bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "tag:yaml.org,2002:int": _INT,
    "tag:yaml.org,2002:float": re.compile(rf"{_FLOAT.pattern}|{_INFINITY.pattern}|\.(nan|NaN|NAN)"),
    _MERGE: re.compile(r"<<"),
}


class Merging(dict[str, Any]):
    """A mapping with the merge key `<<`: its fields, and which of them are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.own = set[str]()
        """Names of the fields that stand in the mapping itself; they win over merged ones."""
        self.merged: Any = []
        """The mapping that it merges, or a list of them; fields of the first win."""

    def merge(self) -> None:
        """Take the fields that the merged mappings have now.

        Raises:
            InputError: what is merged is no mapping.
        """
        sources = self.merged if isinstance(self.merged, list) else [self.merged]
        found: dict[str, Any] = {}
        for source in reversed(sources):
            if not isinstance(source, dict):
                raise InputError(f"{quoted(source)} is merged by <<, which takes a mapping")
            found |= source
        for name in [n for n in self if n not in self.own and n not in found]:
            del self[name]
        self.update((name, value) for name, value in found.items() if name not in self.own)


def read_yaml(text: str, where: str) -> Any:
    """Plain values of a YAML document: dict, list, str, int (of 64 bits), float, bool and None.

    A mapping with a merge key is a `Merging`.

    Args:
        text: the document.
        where: names it in messages.

    Raises:
        InputError: the text is not YAML, has a duplicate key or an alias inside the value it refers to, or
            exceeds a limit; the message has the line.
    """
    if len(text) > MAX_FILE_BYTES:
        raise InputError(
            f"{where} has {len(text):,} characters, more than {MAX_FILE_BYTES:,}; an experiment is small, so "
            "put data into separate files and name these"
        )
    # Both are SafeLoaders, which create plain values only.
    if _FAST is not None:
        with contextlib.suppress(yaml.YAMLError, UnicodeError):  # told of by the other one
            return yaml.load(text, _FAST)
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not readable as YAML: {_reason(error, text)}") from error


class _Limited(Composer):
    """Refuses cycles, duplicate keys and documents that are too deep or too large."""

    _depth = 0
    merges: dict[yaml.Node, tuple[list[yaml.Node], yaml.Node]]
    """Of mappings with a merge key: the other keys, and what is merged. PyYAML flattens their nodes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._depth += 1
        if self._depth > MAX_NESTING:
            at: Any = cast(Any, self).peek_event()  # of the parser beside it
            raise ConstructorError(None, None, _TOO_DEEP, at.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode):
            merged = [value for key, value in node.value if key.tag == _MERGE]
            if merged:
                self.merges[node] = [k for k, _ in node.value if k.tag != _MERGE], merged[0]
        return node

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _check(node, set(), _Budget(node))
        return node


_TOO_DEEP = f"lists and mappings are nested more than {MAX_NESTING} deep"


class _Budget:
    """Counts down the values that are still allowed."""

    def __init__(self, root: yaml.Node) -> None:
        self._left, self._root = MAX_NODES, root

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConstructorError(
                None,
                None,
                f"it stands for more than {MAX_NODES:,} values, aliases written out",
                self._root.start_mark,
            )


def _check(node: yaml.Node, around: set[int], budget: _Budget) -> None:
    """Raises: ConstructorError: a cycle, too many values, or a key twice."""
    budget.spend()
    if isinstance(node, yaml.ScalarNode):
        return
    if id(node) in around:
        raise ConstructorError(
            None, None, "an alias is inside the value it refers to", node.start_mark
        )
    if len(around) >= MAX_NESTING:
        raise ConstructorError(None, None, _TOO_DEEP, node.start_mark)
    around.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
    for child in _children(node):
        _check(child, around, budget)
    around.remove(id(node))


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    for value in node.value:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConstructorError(
                None, None, "a list or a mapping is used as a key", key.start_mark
            )
        if (key.tag, key.value) in seen:
            raise ConstructorError(
                None, None, f"the key {quoted(key.value)} stands here twice", key.start_mark
            )
        seen.add((key.tag, key.value))


def _constructed_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    if not _INT.fullmatch(text) or len(text) > 20 or abs(value := int(text, base)) >= 1 << 63:
        raise ConstructorError(
            None, None, f"{quoted(text)} is not a 64-bit integer", node.start_mark
        )
    return value if not text.startswith("-") else -abs(value)


def _constructed_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    if infinity := _INFINITY.fullmatch(text):
        return float(f"{infinity[1]}inf")
    if text.lower() == ".nan":
        return float("nan")
    if not _FLOAT.fullmatch(text):
        raise ConstructorError(None, None, f"{quoted(text)} is not a number", node.start_mark)
    return float(text)


def _constructed_bool(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> bool:
    text = loader.construct_scalar(node).lower()
    if text not in ("true", "false"):
        raise ConstructorError(
            None, None, f"{quoted(text)} is neither true nor false", node.start_mark
        )
    return text == "true"


def _constructed_str(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    text = loader.construct_scalar(node)
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise ConstructorError(
            None, None, f"{quoted(text)} holds half of a character", node.start_mark
        )
    return text


def _constructed_map(loader: Any, node: yaml.MappingNode) -> Iterator[Any]:
    if node not in loader.merges:
        yield from yaml.SafeLoader.construct_yaml_map(loader, node)
        return
    names, merged = loader.merges[node]
    mapping = Merging()
    yield mapping  # before it has content, so that aliases are the same object
    mapping.update(loader.construct_mapping(node))
    mapping.own.update(map(loader.construct_object, names))
    mapping.merged = loader.construct_object(merged)


def _refused(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    raise ConstructorError(
        None,
        None,
        f"the tag {quoted(node.tag)} is not known; write plain values",
        node.start_mark,
    )


def _loader(parsing: Any) -> Any:
    """A loader of plain values with the scalars of YAML 1.2.

    Args:
        parsing: the loader of PyYAML's whose parser reads the text.
    """

    class Loader(_Limited, parsing):
        yaml_implicit_resolvers: dict[str | None, Any] = {}  # noqa: RUF012  # as in the parent
        yaml_constructors: dict[Any, Any] = {}  # noqa: RUF012

        def __init__(self, stream: str) -> None:
            parsing.__init__(self, stream)
            Composer.__init__(self)
            self.merges = {}

    for tag, pattern in _TAGS.items():
        Loader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern.pattern})\Z"), None)
    for tag, constructed in _CONSTRUCTED.items():
        Loader.add_constructor(tag and f"tag:yaml.org,2002:{tag}", constructed)
    return Loader


_CONSTRUCTED: dict[Any, Any] = {
    "null": yaml.SafeLoader.construct_yaml_null,
    "bool": _constructed_bool,
    "int": _constructed_int,
    "float": _constructed_float,
    "str": _constructed_str,
    "seq": yaml.SafeLoader.construct_yaml_seq,
    "map": _constructed_map,
    None: _refused,  # whatever has no constructor of its own
}
_Loader = _loader(yaml.SafeLoader)
_FAST: Any = _loader(yaml.CSafeLoader) if hasattr(yaml, "CSafeLoader") else None
"""Reads with libyaml, which wheels of PyYAML have, five times as fast."""


def _reason(error: yaml.YAMLError, document: str) -> str:
    """What is wrong and where in a document, on one line."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    text = visible(" ".join(str(problem).split()))
    if len(text) > 2 * LIMIT:
        text = f"{text[: 2 * LIMIT]}…"
    if mark is None:
        return text
    # The parser counts other line ends as well, and the last line may be after the last one.
    line = "".join(document.splitlines()[mark.line : mark.line + 1])
    if "expected ',' or" in text and "${" in line:
        text += (
            '; inside { } and [ ], text with ${NAME} has to be in quotation marks: "${NAME}/a.csv"'
        )
    return f"line {mark.line + 1}, column {mark.column + 1}: {text}"

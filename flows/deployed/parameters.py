"""What whoever starts a run in Prefect may give: the form that its pages show, and the checks of it.

Its settings come from the config model that reads `runtime` of an experiment: descriptions, limits, choices.
Prefect checks what is given against the form; the experiment is then read with it, by that model.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, WithJsonSchema

from permafrost.flows.context import RunRuntime
from permafrost.flows.engine_choice import schemes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

MOST_SECONDS = 3600
"""That a parameter may say."""
_ENGINE = rf"^(serial|prefect|dask|dask=({'|'.join(map(re.escape, schemes()))})://.+)$"


def form(model: type[BaseModel], leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON schema of some fields of a config: each may be left out, and none has a value of its own.

    Args:
        model: whose fields have docstrings as their descriptions.
        leave_out: fields that the form does not have.
    """
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    for name in leave_out:
        del schema["properties"][name]
    return _with_defaults_told(schema, parts)


def _with_defaults_told(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(schema)
    if (name := own.pop("$ref", None)) is not None:
        # What is said of the field goes before what is said of its class.
        own = {**parts[name.rpartition("/")[2]], **own}
    default = own.pop("default", None)
    if "properties" in own:
        fields = cast("dict[str, dict[str, Any]]", own["properties"])
        own["properties"] = {n: _with_defaults_told(f, parts) for n, f in fields.items()}
    elif default is not None:
        told = " ".join(str(own.get("description", "")).split())
        own["description"] = f"{told} If nobody says otherwise: {json.dumps(default)}."
    return own


ExperimentParameter = Annotated[
    Annotated[str, Field(title="A file", min_length=1)]
    | Annotated[dict[str, Any], Field(title="Its fields")],
    Field(examples=["experiments/demo.yaml"]),
]
HomeParameter = Annotated[str, Field(min_length=1, examples=[".permafrost", "s3://bucket/prefix"])]
OverridesParameter = list[Annotated[str, Field(pattern=r"^[^=]+=", examples=["seeds=[0]"])]] | None
EngineParameter = Annotated[str, Field(pattern=_ENGINE, examples=["serial", "prefect"])] | None
RuntimeParameter = (
    Annotated[dict[str, Any], WithJsonSchema(form(RunRuntime, leave_out=["engine"]))] | None
)
RequiredDeploymentParameter = Annotated[
    str, Field(pattern=r"^[^/]+/[^/]+$", examples=["downstream/downstream"])
]
DeploymentParameter = RequiredDeploymentParameter | None
SecondsParameter = Annotated[float, Field(ge=0, le=MOST_SECONDS)]


@dataclass(frozen=True)
class Request:
    """What a run was asked for, of the right types."""

    experiment: str | dict[str, Any]
    home: str
    overrides: tuple[str, ...]
    """Those of `runtime` among them."""
    engine: str | None


def request(
    experiment: object,
    home: object,
    overrides: object = None,
    engine: object = None,
    runtime: object = None,
) -> Request:
    """Check what a deployment or whoever starts a run of it gives.

    Raises:
        InputError: a parameter is of the wrong type, or the experiment is an empty text.
    """
    are_texts = isinstance(overrides, list) and all(isinstance(o, str) for o in overrides)
    for name, value, is_right, wanted in (
        ("experiment", experiment, isinstance(experiment, str | dict), "the path of a file"),
        ("home", home, isinstance(home, str), "the path of a folder, or a URL"),
        ("overrides", overrides, overrides is None or are_texts, "a list of texts: ['seeds=[0]']"),
        ("engine", engine, engine is None or isinstance(engine, str), "its name, or null"),
        ("runtime", runtime, runtime is None or isinstance(runtime, dict), "fields and values"),
    ):
        if not is_right:
            raise InputError(
                f"the parameter {name} is {quoted(value)}, of type {type(value).__name__}; give {wanted}"
            )
    if experiment == "":
        raise InputError("the experiment is empty; give the path of a YAML file")
    given = cast("list[str] | None", overrides) or []
    settings = cast("dict[str, Any] | None", runtime) or {}
    return Request(
        experiment=cast("str | dict[str, Any]", experiment),
        home=cast(str, home),
        overrides=(*given, *as_overrides("runtime", settings)),
        engine=cast("str | None", engine),
    )


def seconds(name: str, given: object) -> float:
    """Check a parameter that is a time.

    Raises:
        InputError: it is no number, below 0 s, or above an hour.
    """
    if (
        isinstance(given, int | float)
        and not isinstance(given, bool)
        and 0 <= given <= MOST_SECONDS
    ):
        return float(given)
    raise InputError(
        f"the parameter {name} is {quoted(given)}, of type {type(given).__name__}; give a number of seconds "
        f"from 0 to {MOST_SECONDS}"
    )


def as_parameters(experiment: object, home: object, overrides: object) -> dict[str, Any]:
    """What a run hands on to another one."""
    given = {"experiment": experiment, "home": home, "overrides": overrides}
    return {name: value for name, value in given.items() if value is not None}


def as_overrides(path: str, fields: Mapping[str, Any]) -> list[str]:
    """`path.to.field=value` for every value in a nested mapping."""
    found: list[str] = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found += as_overrides(f"{path}.{name}", cast("Mapping[str, Any]", value))
        elif value is not None:  # a form sends what was not filled in as null
            found.append(f"{path}.{name}={json.dumps(value)}")
    return found

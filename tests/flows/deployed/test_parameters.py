"""The form of a deployment's parameters: descriptions, limits and choices are those of the config models."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.utilities.schema_tools import validate
from pydantic import BaseModel

from permafrost.flows.context import RunRuntime
from permafrost.flows.deployed.parameters import as_overrides, form, request, seconds
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.parts import downstream, extract
from permafrost.flows.pipeline import pipeline
from permafrost.flows.watching import watch
from permafrost.storage.errors import InputError
from tests.docker.plain_processes import compose
from tests.flows.prefect_box import ROOT

FLOWS: list[Flow[..., Any]] = [pipeline, extract, downstream, watch]
REQUIRED = {"experiment": "a.yaml"}


def schema_of(flow: Flow[..., Any]) -> dict[str, Any]:
    return flow.parameters.model_dump()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda f: f.name)
def test_every_parameter_is_described_and_has_a_place(flow: Flow[..., Any]) -> None:
    schema = schema_of(flow)
    assert schema["required"] == ["experiment"]
    fields = schema["properties"].values()
    assert all(len(field["description"]) > 20 for field in fields)
    assert sorted(field["position"] for field in fields) == list(range(len(fields)))
    assert len(flow.description or "") > 20


def test_settings_have_the_descriptions_limits_and_choices_of_their_model() -> None:
    def compare(model: type[BaseModel], schema: dict[str, Any]) -> int:
        n = 0
        own = model.model_json_schema()
        for name, field in schema["properties"].items():
            inner = model.model_fields[name].annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                n += compare(inner, field)
                continue
            n += 1
            theirs = own["properties"][name]
            assert field["description"].startswith(" ".join(theirs["description"].split()))
            assert "default" not in field, "what nobody fills in stays what the experiment says"
            for limit in ("minimum", "maximum", "enum", "type"):
                assert field.get(limit) == theirs.get(limit)
        return n

    schema = form(RunRuntime, leave_out=["engine"])
    named = (RunRuntime.model_fields.keys() - {"engine"}, schema["properties"].keys())
    assert named[0] == named[1]
    assert compare(RunRuntime, schema) == 11


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"runtime": {"workers": -1}}, "-1 is less than the minimum of 0"),
        ({"runtime": {"extract": {"busy": "maybe"}}}, "'maybe' is not one of ['end', 'wait']"),
        ({"runtime": {"speed": 1}}, "'speed' was unexpected"),
        ({"overrides": ["seeds"]}, "does not match"),
        ({"engine": "spark"}, "does not match"),
        ({"engine": "dask=tpc://host:8786"}, "does not match"),
        ({"home": ""}, "should be non-empty"),
    ],
)
def test_what_does_not_fit_is_refused_before_there_is_a_run(
    wrong: dict[str, Any], message: str
) -> None:
    schema = schema_of(pipeline)
    right = {"runtime": {"workers": 2, "extract": {"busy": "wait"}}, "overrides": ["seeds=[0]"]}
    assert is_valid(REQUIRED | right | {"engine": "dask=tcp://host:8786"}, schema)
    assert is_valid({"experiment": {"name": "a"}, "overrides": None, "runtime": None}, schema)
    errors = validate(REQUIRED | wrong, schema, ignore_required=False)
    assert any(message in _all_of(error) for error in errors)


def is_valid(parameters: dict[str, Any], schema: dict[str, Any]) -> bool:
    return not validate(parameters, schema)


def _all_of(error: Any) -> str:
    return " ".join([error.message, *map(_all_of, error.context or ())])


def test_settings_change_the_experiment_and_are_checked_by_its_model(experiment_file: Path) -> None:
    runtime = {"threads": 3, "extract": {"device": "cpu", "busy": "wait", "too_long": None}}
    asked = request(str(experiment_file), "home", ["seeds=[4]"], None, runtime)
    found = load_experiment(experiment_file, asked.overrides)
    assert found.seeds == (4,)
    assert found.runtime.workers == 2, "what nobody filled in is the experiment's"
    assert (found.runtime.threads, found.runtime.extract.busy) == (3, "wait")
    assert as_overrides("runtime", {"extract": {"device": "cuda:1"}}) == [
        'runtime.extract.device="cuda:1"'
    ]


@pytest.mark.parametrize("wrong", ["abc", "5", None, True, -1, 3601, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused_where_nobody_checked_the_form(wrong: object) -> None:
    assert (seconds("settle_s", 0), seconds("settle_s", 2.5)) == (0, 2.5)
    with pytest.raises(
        InputError, match=r"settle_s is .*; give a number of seconds from 0 to 3600"
    ):
        seconds("settle_s", wrong)


def test_an_empty_experiment_is_told() -> None:
    with pytest.raises(InputError, match=r"the experiment is empty; give the path of a YAML file"):
        request("", "home")


@pytest.mark.parametrize("file", ["prefect.yaml", "docker/prefect.yaml"])
def test_both_files_have_the_same_deployments_whose_parameters_fit(file: str) -> None:
    flows = {f.name: f for f in FLOWS}
    document = yaml.safe_load((ROOT / file).read_text())
    by_name = {d["name"]: d for d in document["deployments"]}
    settings = compose()["services"]["deployment"]["environment"]
    assert {name: d["work_pool"]["name"] for name, d in by_name.items()} == {
        "nightly": "gpu",
        "extract": "gpu",
        "downstream": "cpu",
        "watch": "cpu",
    }
    started: set[str] = set()
    for deployment in by_name.values():
        flow = flows[deployment["entrypoint"].replace(":", ".").rpartition(".")[2]]
        given = {k: v for k, v in deployment["parameters"].items() if "{{" not in str(v)}
        assert is_valid(REQUIRED | given, schema_of(flow))
        started |= {given[name] for name in ("then", "start") if name in given}
        assert deployment["concurrency_limit"] in (
            1,
            {"limit": 1, "collision_strategy": "CANCEL_NEW"},
        )
        for schedule in deployment.get("schedules", ()):
            assert schedule["cron"]
            assert schedule["timezone"]
            active = settings.get(str(schedule["active"]).strip("{} $"), schedule["active"])
            assert str(active).lower() == str(deployment["name"] == "nightly").lower()
    assert started == {"extract/extract", "downstream/downstream"}
    assert by_name["extract"]["parameters"]["runtime"]["extract"]["busy"] == "wait"

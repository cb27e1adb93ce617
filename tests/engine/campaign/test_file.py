from __future__ import annotations

import copy
import importlib.util
import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from optvet import UsageError, VetRequest
from optvet.engine.campaign import Digests, open_store
from optvet.engine.campaign.file import read_campaign
from optvet.engine.campaign.plan import plan_campaign, requests_of, tool_of
from optvet.engine.campaign.template import template
from optvet.engine.discovery import Plugins
from optvet.engine.environment.environments import Pythons, environments_root
from optvet.engine.models.selectors import expand_models
from optvet.plugin import Sensitive
from optvet.testing import Planted

PLUGINS = Plugins()


def requests(place: Path, text: str) -> list[tuple[str, str | None, str, tuple[str, ...]]]:
    file = place / "campaign.toml"
    file.write_text(text)
    source = read_campaign(file, PLUGINS)
    return [
        (Path(r.model).name, r.optimizer, r.pipeline, r.dataset)
        for r in requests_of(source, PLUGINS)
        if isinstance(r, VetRequest)
    ]


def test_a_path_that_no_file_system_takes_is_refused_in_words(place: Path) -> None:
    Path("c.toml").write_text(f'models = ["{"n" * 400}"]\noptimizers = ["onnxoptimizer"]\n')
    with pytest.raises(UsageError, match="no such file or folder"):
        list(requests_of(read_campaign(Path("c.toml"), Plugins()), Plugins()))


def test_every_combination_is_asked_once(models: Path, place: Path) -> None:
    asked = requests(
        place,
        """
        models = ["models/"]
        optimizers = ["onnxoptimizer", "onnxruntime"]
        pipelines = ["default", "all"]
        datasets = ["random", ["random", "auto:models"]]
        """,
    )
    assert len(asked) == len(set(asked)) == 2 * 2 * 2 * 2
    assert ("faulty.onnx", "onnxruntime", "all", ("random", f"auto:{models}")) in asked


def test_a_job_that_differs_in_its_seed_alone_costs_no_look_at_plugins(
    models: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(count: int) -> int:
        file, plugins, taken = place / "campaign.toml", Plugins(), 0

        def counted(*given: object) -> list[object]:
            nonlocal taken
            taken += 1
            return list(Plugins.all(*given))  # type: ignore[arg-type]

        def version(name: str) -> str:
            nonlocal taken
            taken += 1
            return f"{name} 1"

        monkeypatch.setattr(plugins, "all", lambda *given: counted(plugins, *given))
        monkeypatch.setattr(metadata, "version", version)
        sets = "".join(f"[[jobs]]\n[jobs.vet]\nseed = {k}\n" for k in range(count))
        head = 'models = ["models/clean.onnx"]\noptimizers = ["onnxoptimizer"]\n'
        file.write_text(head + sets)
        with open_store(place / f"store-{count}", create=True) as store:
            source = read_campaign(file, plugins)
            made = plan_campaign(source, plugins, Digests(store.database), cache_dir=place)
        assert len(made.jobs) == count
        return taken

    assert looks(40) == looks(2)


def test_a_set_of_jobs_takes_from_the_whole_what_it_does_not_say(models: Path, place: Path) -> None:
    file = place / "campaign.toml"
    file.write_text(
        """
        models = ["models/clean.onnx"]
        [vet]
        timeout = 7
        limit = 3
        [[jobs]]
        optimizers = ["onnxoptimizer"]
        [[jobs]]
        optimizers = ["onnxruntime"]
        [jobs.vet]
        limit = 5
        """
    )
    made = list(requests_of(read_campaign(file, PLUGINS), PLUGINS))
    asked = [(r.optimizer, r.timeout, r.limit) for r in made if isinstance(r, VetRequest)]
    assert asked == [
        ("onnxoptimizer", 7.0, 3),
        ("onnxruntime", 7.0, 5),
    ]


WRONG = {
    'models = ["m"]\noptimizer = ["a"]': r":2: key 'optimizer': .*mean 'optimizers'",
    'models = ["m"]\n\noptimizers = ["onnxoptimiser"]': r":3: .*mean 'onnxoptimizer'",
    'models = ["m"]\n[vet]\ntimeout = "abc"': r":3: key 'vet.timeout': 'abc' is not a number",
    'models = ["m"]\n[[jobs]]\n[[jobs]]\n[jobs.vet]\nlimt = 4': r":5: key 'jobs\[2\]\.vet\.limt'",
    'models = ["m"]\n[vet]\ntrust = true': r":3: key 'vet.trust': .*give --trust",
    'models = ["m"]\n[vet]\nout = "x"': r":3: key 'vet.out': .*bundles = true",
    'models = ["m"]\nruntimes = ["onnxruntime"]\n[vet]\nruntime = "x"': r":4: .*'runtimes' says",
    'models = ["m"]\n[vet]\noptimizer_options = { nope = 1 }': r":3: .*_options'.*'nope'",
    "models = []": r":1: key 'models': missing or empty",
    "name = 'x'": r"key 'models': missing or empty",
    "models = 3": r":1: key 'models': 3: expected a list",
    "jobs = [3]": r":1: key 'jobs\[1\]': 3: expected a table",
    'models = ["m"]\nname = ""': r":2: key 'name': it is empty; give a value",
    'models = ["m", ""]': r":1: key 'models\[2\]': it is empty",
    'models = ["m"]\noptimizers = [""]': r":2: key 'optimizers\[1\]': it is empty",
    'models = ["m"]\n[vet]\nruntime = ""': r":3: key 'vet.runtime': it is empty",
    'models = ["m"]\n[[jobs]]\ndatasets = [[""]]': r":3: key 'jobs\[1\]\.datasets.*': it is empty",
    'models = ["m"\nx': r"campaign.toml cannot be read: .*line 2",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_told_with_file_line_and_key(text: str, place: Path) -> None:
    file = place / "campaign.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=WRONG[text]) as caught:
        read_campaign(file, PLUGINS)
    assert str(caught.value).startswith(str(file))


def test_a_selector_that_means_nothing_is_told_with_its_line(place: Path) -> None:
    with pytest.raises(UsageError, match=r"campaign.toml:2: key 'models': .*no file matches"):
        requests(place, '\nmodels = ["none/*.onnx"]')


class Options(BaseModel):
    hooks: Annotated[tuple[str, ...], Sensitive("runs Python code")] = ()


def test_options_that_run_code_need_trust(models: Path, place: Path) -> None:
    plugins = Plugins().register("optimizer", replace_options("onnxoptimizer", Options()))
    file = place / "campaign.toml"
    file.write_text(
        'models = ["models/"]\noptimizers = ["hooked"]\n'
        '[vet]\noptimizer_options = { hooks = ["evil:code"] }\n'
    )
    with pytest.raises(UsageError, match=r":4: key 'vet.optimizer_options': .*say --trust"):
        read_campaign(file, plugins)
    read_campaign(file, plugins, trust=True)


def replace_options(name: str, options: BaseModel) -> Any:
    """The optimizer ``name`` as "hooked", with other options."""
    plugin = copy.copy(PLUGINS.optimizer(name))
    plugin.name, plugin.options = "hooked", options
    return plugin


@pytest.mark.parametrize("kind", ["whole file", "set of jobs"])
def test_data_that_options_name_is_found_beside_the_file(
    kind: str, models: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "data").mkdir()
    (place / "data" / "labels.csv").write_text("file,label\na.png,1\n")
    (place / "elsewhere").mkdir()
    table = "[jobs.vet" if kind == "set of jobs" else "[vet"
    start = "[[jobs]]\n" if kind == "set of jobs" else ""
    text = f"""{start}models = ["models/"]
datasets = ["images:data"]
{table}.dataset_options]
labels = "data/labels.csv"
label_key = "label"
"""
    (place / "campaign.toml").write_text(text)
    monkeypatch.chdir(place / "elsewhere")

    def keys() -> set[str]:
        source = read_campaign(place / "campaign.toml", PLUGINS)
        with open_store(place / "s", create=True) as store:
            plan = plan_campaign(source, PLUGINS, Digests(store.database), cache_dir=place)
        for job in plan.jobs:
            assert isinstance(job.request, VetRequest)
            assert job.request.dataset == (f"images:{place / 'data'}",)
            named = {"labels": str(place / "data" / "labels.csv"), "label_key": "label"}
            assert job.request.dataset_options == named
        return {job.key for job in plan.jobs}

    before = keys()
    (place / "data" / "labels.csv").write_text("file,label\na.png,2\n")
    assert before.isdisjoint(keys()), "answers depend on labels"


def test_a_word_that_stands_for_a_file_stays_as_it_is(models: Path, place: Path) -> None:
    (place / "folders").mkdir()
    (place / "campaign.toml").write_text(
        'models = ["models/"]\n[vet]\ndataset = ["images:models"]\n'
        'dataset_options = { labels = "folders" }\n'
    )
    for request in requests_of(read_campaign(place / "campaign.toml", PLUGINS), PLUGINS):
        assert isinstance(request, VetRequest)
        assert request.dataset_options == {"labels": "folders"}


def test_models_are_named_by_file_folder_glob_and_source(models: Path, place: Path) -> None:
    (place / "deep" / "er").mkdir(parents=True)
    os.link(models / "clean.onnx", place / "deep" / "er" / "third.onnx")
    selectors = ["models/", "models/clean.onnx", "deep/**/*.onnx", "zoo:digits-*"]
    found = expand_models(selectors, PLUGINS)
    assert [Path(f).name for f in found] == [
        "clean.onnx",
        "faulty.onnx",
        "third.onnx",
        "zoo:digits-cnn",
        "zoo:digits-mlp",
    ] or found[-2:] == ["zoo:digits-cnn", "zoo:digits-mlp"]
    every = expand_models(["zoo:all"], PLUGINS)
    assert len(every) == len(list(PLUGINS.model_source("zoo").models()))
    assert expand_models(["zoo:all"], PLUGINS, exclude=["*-ir3"]) == [
        name for name in every if not name.endswith("-ir3")
    ]


AMOUNTS = {
    "offline": 24 * 5,
    "ditox/study": 147 - 26,
    "ditox/offline": 11,
    "otx/study": 15 * 3,
    "otx/gpu": 3 * 3,
    "otx/offline": 3 * 3,
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_the_studies_that_come_with_optvet_can_be_read(name: str) -> None:
    for library in ("onnxsim", "onnxslim", "onnxscript") if name == "offline" else ():
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"the study is about {library}; install optvet[{library}]")
    source = read_campaign(Path(__file__).parents[3] / "studies" / f"{name}.toml", PLUGINS)
    assert source.name == name.removesuffix("/study").replace("/", "-")
    asked = list(requests_of(source, PLUGINS))
    assert len({r.model_dump_json() for r in asked}) == len(asked) == AMOUNTS[name]


def test_the_study_of_converters_asks_each_network_of_each_chain() -> None:
    for name in ("torch", "onnx2torch", "openvino", "tvm"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the study is about {name}; install optvet[{name}]")
    if Pythons({}, environments_root()).python_of("tf") is None:
        pytest.skip("the environment 'tf' is not made; make it: optvet env make tf")
    file = Path(__file__).parents[3] / "studies" / "converters" / "study.toml"
    asked = list(requests_of(read_campaign(file, PLUGINS, trust=True), PLUGINS))
    assert len({(r.model, tool_of(r)) for r in asked}) == len(asked) == 36


def test_models_of_a_source_are_named_by_tag() -> None:
    found = expand_models(["zoo:@trained"], PLUGINS)
    assert "zoo:digits-cnn" in found
    assert "zoo:resnet50" not in found
    with pytest.raises(UsageError, match="none that matches"):
        expand_models(["zoo:@absent"], PLUGINS)


def test_the_file_of_init_is_a_campaign(place: Path) -> None:
    file = place / "campaign.toml"
    file.write_text(template("campaign"))
    source = read_campaign(file, PLUGINS)
    assert [r.model for r in requests_of(source, PLUGINS)] == ["zoo:digits-cnn", "zoo:digits-mlp"]
    # What is commented out is right as well, but for the names that stand for others.
    text = "\n".join(
        line.removeprefix("#") if "=" in line or "[[" in line or "[jobs" in line else line
        for line in template("campaign").splitlines()
        if "NAME" not in line and "KEY" not in line and 'models = ["models/' not in line
    )
    file.write_text(text)
    assert read_campaign(file, PLUGINS).content.bundles


def test_planning_asks_no_optimizer_for_its_passes(models: Path, place: Path) -> None:
    class Slow(Planted):
        def passes(self) -> Any:
            raise AssertionError("its library would be imported")

    plugins = Plugins().register("optimizer", Slow())
    name = Slow().name
    (place / "c.toml").write_text(f'models = ["{models}"]\noptimizers = ["{name}"]\n')
    source = read_campaign(place / "c.toml", plugins)
    with open_store(place / "store", create=True) as store:
        plan = plan_campaign(source, plugins, Digests(store.database), cache_dir=place / "cache")
    assert [tool_of(job.request) for job in plan.jobs] == [name, name]
    assert {job.versions[name] for job in plan.jobs} == {Slow().version()}

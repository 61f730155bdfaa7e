"""The files for clusters, as far as they can be checked without one."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema

from launch.bench.plan import BenchFlags
from launch.cli import parse
from launch.deploy.application import build

FOLDER = Path(__file__).parents[3] / "launch" / "deploy"
ROOT = FOLDER.parents[1]


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def serve_configs() -> list[Any]:
    service = yaml.safe_load(load("ray-service.yaml")["spec"]["serveConfigV2"])
    return [load("serve.yaml"), service]


@pytest.mark.parametrize("index", [0, 1])
def test_serve_files_follow_serves_schema_and_build(index: int) -> None:
    schema = ServeDeploySchema.model_validate(serve_configs()[index])
    [application] = schema.applications
    module, _, name = application.import_path.partition(":")
    assert getattr(importlib.import_module(module), name)(application.args) is not None
    assert application.name == "switchsteer"


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="args has no key 'resipe'; its keys are recipe"):
        build({"resipe": "smollm2"})
    with pytest.raises(ValueError, match="--recipe must be one of"):
        build({"recipe": "nope"})


@pytest.mark.parametrize("name", ["ray-service.yaml", "ray-job.yaml"])
def test_kuberay_files_name_this_ray_and_reserve_what_they_limit(name: str) -> None:
    manifest = load(name)
    assert manifest["apiVersion"] == "ray.io/v1"
    spec = manifest["spec"]
    cluster = spec.get("rayClusterConfig") or spec["rayClusterSpec"]
    assert cluster["rayVersion"] == ray.__version__
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    containers = [c for group in groups for c in group["template"]["spec"]["containers"]]
    for container in containers:
        assert container["resources"]["limits"] == container["resources"]["requests"]
        volumes = [v["name"] for g in groups for v in g["template"]["spec"].get("volumes", [])]
        assert all(mount["name"] in volumes for mount in container.get("volumeMounts", []))


def test_the_jobs_entrypoint_is_a_command_of_ours() -> None:
    _, dash_m, module, *argv = shlex.split(load("ray-job.yaml")["spec"]["entrypoint"])
    assert dash_m == "-m"
    assert (ROOT / module.replace(".", "/") / "__main__.py").is_file()
    flags = parse(BenchFlags, argv, prog=module, description="")
    assert flags.recipe == "smollm2"


def test_the_image_copies_every_package_and_starts_the_server() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    for package in ("parallel", "engine", "drafters", "ray_app", "launch"):
        assert re.search(rf"^COPY {package} {package}$", text, re.MULTILINE)
    for line in re.findall(r"^COPY (.+) \./$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert "launch.serve70b" in text

"""docs/deploy/server: what nobody here can run is at least of the right form."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import yaml

from jobpipe.config import load

FOLDER = Path(__file__).parents[2] / "docs" / "deploy" / "server"
PAGE = (FOLDER.parents[1] / "server.md").read_text()


def test_the_unit_leaves_the_jobs_alone() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "jobpipe-server.service")
    assert unit["Service"]["ExecStart"].endswith("/jobpipe server")
    assert (unit["Service"]["KillMode"], unit["Service"]["KillSignal"]) == ("process", "SIGTERM")
    assert "deploy/server/jobpipe-server.service" in PAGE


def test_the_manifest(tmp_path: Path) -> None:
    """Its configuration is right, mounts have volumes, ports agree, and there is one server at a time."""
    text = (FOLDER / "kubernetes.yaml").read_text()
    assert text.startswith("# NOT RUN")
    objects: dict[str, dict[str, Any]] = {each["kind"]: each for each in yaml.safe_load_all(text)}
    file = tmp_path / "jobpipe.yaml"
    file.write_text(objects["ConfigMap"]["data"]["jobpipe.yaml"])
    config = load(file, environ={})
    assert (config.server_host, config.server_port, config.tls) == ("0.0.0.0", (8998, 8998), True)  # noqa: S104
    assert config.server_roots == (Path("/var/lib/jobpipe"), Path("/pipelines"))
    assert objects["Service"]["spec"]["ports"][0]["port"] == 8998
    deployment = objects["Deployment"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = [*pod["initContainers"], *pod["containers"]]
    mounts = {mount["name"]: mount["mountPath"] for each in containers for mount in each["volumeMounts"]}
    assert set(mounts) == volumes
    assert config.home == Path(mounts["home"])
    assert config.server_access is not None
    assert str(config.server_access).startswith(mounts["certs"])
    assert "deploy/server/kubernetes.yaml" in PAGE

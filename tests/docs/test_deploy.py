"""docs/deploy/: manifests that nobody here can run are at least of the right form, and name what there is."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.config import keys, load
from tests.docs.pages import block, shell

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "deploy"
UNIT = FOLDER / "jobpipe-host-server.service"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
OBJECTS: list[dict[str, Any]] = [
    each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text()) if each is not None
]


def of_kind(kind: str) -> dict[str, Any]:
    """Return the one object of that kind."""
    (found,) = [each for each in OBJECTS if each["kind"] == kind]
    return found


def pods(value: Any = OBJECTS) -> Iterator[dict[str, Any]]:
    """Yield all descriptions of pods, those inside texts too."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for part in value.values():
            yield from pods(part)
    elif isinstance(value, list):
        for part in value:
            yield from pods(part)
    elif isinstance(value, str) and "kind: Pod" in value:
        yield from pods(yaml.safe_load(value))


def texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, keys too."""
    if isinstance(value, dict):
        yield from texts([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


def test_each_object_says_what_it_is() -> None:
    assert len(MANIFESTS) == 2
    kinds = [each["kind"] for each in OBJECTS]
    assert {"ConfigMap", "DaemonSet", "Deployment", "Service", "PersistentVolumeClaim", "SparkApplication"} == set(
        kinds
    )
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in OBJECTS)
    for path in MANIFESTS:
        assert path.read_text().startswith("# NOT RUN"), path


def test_mounts_have_volumes_and_names_exist() -> None:
    found = list(pods())
    assert len(found) == 5  # host server, driver, executors; the operator's driver and executors
    for pod in found:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in [*pod["initContainers"], *pod["containers"]]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
        assert volumes["config"]["configMap"]["name"] == of_kind("ConfigMap")["metadata"]["name"]
        assert volumes["secret"]["secret"]["secretName"] == "jobpipe-certs"
        assert "install -m 600" in pod["initContainers"][0]["command"][-1]  # a mounted key's mode is refused


def test_the_configuration_of_the_nodes_is_one(tmp_path: Path) -> None:
    file = tmp_path / "jobpipe.yaml"
    file.write_text(of_kind("ConfigMap")["data"]["jobpipe.yaml"])
    config = load(file, environ={})
    assert (config.embedded, config.tls) == (False, True)
    mounts = {mount["mountPath"] for pod in pods() for c in pod["containers"] for mount in c["volumeMounts"]}
    assert str(config.ssl_key and config.ssl_key.parent) in mounts
    assert "/etc/jobpipe" in mounts  # where a process looks for the file


def test_settings_have_names_that_exist() -> None:
    known = {about.spark for about in keys()} | {about.environment for about in keys()}
    everything = [*texts(OBJECTS), UNIT.read_text(), PAGE]
    named = {name for text in everything for name in re.findall(r"spark\.jobpipe\.[a-z_.]+[a-z]|JOBPIPE__\w+", text)}
    assert named <= known
    assert len(named) > 5


def test_the_service_offers_the_ports_that_the_driver_takes() -> None:
    driver = next(text for text in texts(of_kind("Deployment")) if "port.range" in text)
    first, last = map(int, driver.rpartition("=")[2].split("-"))
    ports = {port["port"] for port in of_kind("Service")["spec"]["ports"]}
    assert set(range(first, last + 1)) <= ports
    assert of_kind("Service")["metadata"]["name"] in " ".join(texts(of_kind("Deployment")))


def test_the_programs_are_in_the_image() -> None:
    for text in texts(OBJECTS):
        for script in re.findall(r"examples/\S+\.py", text):
            assert (ROOT / script).is_file()


def test_the_unit_starts_the_host_server() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert unit["Service"]["ExecStart"].endswith("/jobpipe server host")
    assert (unit["Service"]["KillSignal"], unit["Service"]["Restart"]) == ("SIGTERM", "always")
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.processes
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    text = UNIT.read_text().replace("/opt/jobpipe/venv/bin/jobpipe", "/bin/true")  # it must exist
    copy = tmp_path / UNIT.name
    copy.write_text(re.sub(r"^(User|Group)=.*", r"\1=root", text, flags=re.MULTILINE))
    done = subprocess.run(
        [program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_the_page_names_the_manifests() -> None:
    for path in (*MANIFESTS, UNIT):
        assert f"deploy/{path.name}" in PAGE


def test_the_configuration_of_the_page(tmp_path: Path) -> None:
    """Section 3, as it stands there."""
    file = tmp_path / "jobpipe.yaml"
    file.write_text(block("docs/deploy.md", "node"))
    config = load(file, environ={})
    assert (config.embedded, str(config.ssl_key)) == (False, "/etc/jobpipe/certs/node.key")
    assert config.registry_connect == "zk1:2181,zk2:2181,zk3:2181"


@pytest.mark.slow
@pytest.mark.processes
def test_the_certificates_of_the_page(tmp_path: Path) -> None:
    """Section 3, as it stands there: these files are made, the keys for their owner alone."""
    done = shell(block("docs/deploy.md", "certs"), tmp_path, JOBPIPE__HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    files = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "certs").iterdir()}
    assert {"ca.crt", "ca.key", "node.crt", "node.key"} <= set(files)
    assert (files["ca.key"], files["node.key"]) == (0o600, 0o600)


def test_the_submission_is_json() -> None:
    """Section 4: what the REST interface is sent; its settings exist."""
    text = block("docs/deploy.md", "rest")
    sent = json.loads(text[text.index("'{") + 1 : text.rindex("}'") + 1])
    assert sent["action"] == "CreateSubmissionRequest"
    known = {about.spark for about in keys()}
    ours = {name for name in sent["sparkProperties"] if name.startswith("spark.jobpipe.")}
    assert ours
    assert ours <= known

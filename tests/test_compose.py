"""docker-compose.yml and Dockerfile agree with the configuration, the command line and the examples they use."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobpipe.config import load

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
JOBS = {name: service for name, service in OURS.items() if "entrypoint" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def words(service: dict[str, Any]) -> list[str]:
    """Return the command line of a service."""
    command = service.get("command", [])
    return [*service.get("entrypoint", []), *(shlex.split(command) if isinstance(command, str) else command)]


def run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)


def sources(instruction: str) -> Iterator[str]:
    """Yield what the Dockerfile copies from this folder."""
    for line in DOCKERFILE.splitlines():
        if line.startswith(f"{instruction} "):
            yield from line.split()[1:-1]


def test_the_whole_of_the_issue_is_there() -> None:
    zookeepers = [name for name, service in SERVICES.items() if service["image"].startswith("zookeeper:3.9")]
    assert len(zookeepers) == 3
    scripts = {Path(word).stem for service in JOBS.values() for word in words(service) if word.endswith(".py")}
    assert scripts == {"publish_flights", "delays", "report", "audit"}
    classes = [word for service in OURS.values() for word in words(service) if word.startswith("org.apache.spark.")]
    assert sorted(name.rpartition(".")[2] for name in classes) == ["Master", "Worker", "Worker"]


@pytest.mark.parametrize("name", OURS)
def test_environment_is_a_valid_configuration(name: str) -> None:
    environ = OURS[name]["environment"]
    config = load("/dev/null", environ=environ)
    assert not config.embedded
    assert config.tls
    for server in config.registry_connect.split(","):
        assert server.partition(":")[0] in SERVICES
    mounts = [volume.split(":")[1] for volume in OURS[name]["volumes"]]
    for file in (config.ssl_ca, config.ssl_cert, config.ssl_key):
        assert str(file.parent if file else None) in mounts
    if name in JOBS:
        assert str(config.home) in mounts


def test_the_ensemble_names_its_own_services() -> None:
    servers = {name: service for name, service in SERVICES.items() if "ZOO_MY_ID" in service.get("environment", {})}
    wanted = {f"server.{s['environment']['ZOO_MY_ID']}={name}:2888:3888;2181" for name, s in servers.items()}
    for service in servers.values():
        assert set(service["environment"]["ZOO_SERVERS"].split()) == wanted


@pytest.mark.processes
def test_the_certificates_are_made_where_the_jobs_look_for_them(tmp_path: Path) -> None:
    program, *arguments = words(OURS["certs"])
    assert program == "jobpipe"
    environ = {**os.environ, **OURS["certs"]["environment"]}
    places = [word.replace("/certs", str(tmp_path / "certs")) for word in arguments]
    done = run([str(Path(sys.executable).with_name(program)), *places], env=environ)
    assert done.returncode == 0, done.stderr
    for key in ("CA", "CERT", "KEY"):
        file = OURS["audit"]["environment"][f"JOBPIPE__SSL__{key}"]
        assert (tmp_path / "certs" / Path(file).name).is_file()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in OURS if any(word.endswith(".py") for word in words(OURS[name]))])
def test_scripts_exist_and_take_these_options(name: str) -> None:
    command = words(OURS[name])
    at = next(index for index, word in enumerate(command) if word.endswith(".py"))
    script = ROOT / command[at]
    done = run([sys.executable, str(script), "--help"])
    assert done.returncode == 0, done.stderr
    for option in (word for word in command[at + 1 :] if word.startswith("--")):
        assert option.partition("=")[0] in done.stdout


def test_what_services_refer_to_exists() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], name
        for other in service.get("depends_on", []):
            assert other in SERVICES, name
        master = [word for word in words(service) if "spark://" in word]
        assert all("spark://spark-master:7077" in word for word in master), name
    assert SERVICES["spark-master"]["hostname"] == "spark-master"


def test_folders_of_volumes_belong_to_the_user_of_the_image() -> None:
    made = re.search(r"install --directory .*?((?: /\w+)+)\s*\n", DOCKERFILE)
    assert made is not None
    mounts = {volume.split(":")[1] for service in OURS.values() for volume in service["volumes"]}
    assert mounts <= set(made.group(1).split())


def test_the_image_copies_what_there_is() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for source in sources("COPY"):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source


@pytest.mark.processes
def test_compose_itself_accepts_the_file() -> None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and run([*command, "version"]).returncode == 0:
            break
    else:
        pytest.skip("no docker compose here")
    done = run([*command, "config", "--quiet"])
    assert done.returncode == 0, done.stderr

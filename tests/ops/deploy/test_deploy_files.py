"""The files of `ops/deploy` and their guide: they parse, name only existing things, and contain no secret."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from ops.cli.commands.services.group import DASHBOARD_PORT, MLFLOW_PORT, PREFECT_PORT
from ops.cli.main import UsageError, app
from yatt_core.engine_environments import ENGINES, VLLM
from yatt_core.errors import ExitCode

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "ops" / "deploy"
GUIDES = (ROOT / "docs" / "deploy.md", ROOT / "docs" / "storage.md")
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE = f"yatt:{VERSION}"
YATT = re.compile(r"(?:^\s*|`|/|-- |exec group )yatt (?P<line>[a-z][^`\n#|>;&]*)")
"""A command in its usual places: at a line's start, in backquotes, after a path or after the program that runs it."""
WHERE_SET = re.compile(r"\$\{\w+:\+(.*?)\}")
"""A shell word that is present only if a variable is set."""
PREVENTED = {
    "yatt-group.service": {ExitCode.CONFIGURATION},
    "yatt-run@.service": {ExitCode.CONFIGURATION, ExitCode.LEASE_HELD, ExitCode.PAUSED},
}
"""Exit codes after which a restart does harm or cannot help."""
SECRET = re.compile(r"(?i)(password|secret|token|key)[\w-]*['\"]?\s*[:=]\s*['\"]?([^\s'\"$]{6,})")
PLACEHOLDERS = re.compile(r"(USER|PASSWORD|KEY|SECRET|HOST|REGION|\.\.\.|prefect-|ledger|mlflow|false|true|token$)")


def commands_in(path: Path) -> Iterator[list[str]]:
    """Yields every `yatt ...` that a file runs or recommends: in units, scripts, argument lists, and code in guides."""
    for line in path.read_text().splitlines():
        if listed := re.search(r"\[\"yatt\", (.*)\]", line):
            yield [word.strip(' "') for word in listed[1].split(",")]
        elif path.suffix != ".md" or line.startswith("    ") or "`yatt " in line:
            yield from (shlex.split(WHERE_SET.sub(r"\1", match["line"])) for match in YATT.finditer(line))


def parse(words: Sequence[str]) -> None:
    """Parses a command line with the real program without running it; a name alone only has to be a command's.

    Typer may contain its own copy of click, so the classes are taken from the program itself.
    """
    command: Any = typer.main.get_command(app)
    context = type(command.make_context("yatt", ["doctor"]))(command, info_name="yatt")
    rest = list(words)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = type(context)(command, parent=context, info_name=name)
    if rest:
        command.make_context(command.name, rest, parent=context.parent)


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda path: path.name)
def test_every_yatt_command_line_is_valid(path: Path) -> None:
    for words in commands_in(path):
        try:
            parse(words)
        except UsageError as error:
            raise AssertionError(f"{path.name}: yatt {' '.join(words)}: {error.format_message()}") from error


def test_tunnels_use_the_ports_of_the_group() -> None:
    tunnels = re.findall(r"-L (\d+):127\.0\.0\.1:(\d+)", (ROOT / "docs/deploy.md").read_text())
    assert [(int(near), int(far)) for near, far in tunnels] == [
        (port, port) for port in (PREFECT_PORT, MLFLOW_PORT, DASHBOARD_PORT)
    ]


def test_commands_are_found_in_the_files() -> None:
    """Shows that the test above finds commands at all."""
    found = {path.name: [words[0] for words in commands_in(path)] for path in (*FILES, *GUIDES)}
    assert "up" in found["compose.yaml"] and "up" in found["yatt-group.service"]
    assert "resume" in found["yatt-run@.service"] and "resume" in found["yatt.sbatch"]
    assert {"train", "plan", "up", "fork"} <= set(found["deploy.md"])
    with pytest.raises(UsageError):
        parse(["train", "spec.yaml", "--no-such-option"])
    with pytest.raises(UsageError):
        parse(["no-such-command"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_contains_a_secret(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not re.search(r"secret(Key)?Ref:", line)]
    for line in lines:
        for _, value in SECRET.findall(line):
            assert "${" in value or PLACEHOLDERS.search(value), f"{path.name}: {line}"


def documents() -> list[dict[str, Any]]:
    return [
        body
        for path in MANIFESTS
        for body in YAML(typ="safe").load_all(path.read_text())
        if body["kind"] != "Kustomization"
    ]


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """Returns every pod template in a manifest."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from pods(value)
    elif isinstance(node, list):
        for value in node:
            yield from pods(value)


def test_the_manifests_are_complete_and_agree_with_each_other() -> None:
    found = documents()
    resources = YAML(typ="safe").load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["resources"]
    assert sorted(resources) == sorted(path.name for path in MANIFESTS if path.name != "kustomization.yaml")
    assert {(body["apiVersion"], body["kind"]) for body in found} == {
        ("v1", "Namespace"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("ray.io/v1", "RayCluster"),
    }
    claims = {body["metadata"]["name"] for body in found if body["kind"] == "PersistentVolumeClaim"}
    guide = (ROOT / "docs/deploy.md").read_text()
    for pod in pods(found):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        used = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
        assert used <= claims
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["image"] == IMAGE
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes.keys()
            for entry in container.get("env", []):
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                assert reference or ("PASSWORD" not in entry["name"] and "AUTH_STRING" not in entry["name"])
                if reference:
                    assert f"--from-literal={reference['key']}=" in guide and reference["name"] in guide
            for source in container.get("envFrom", []):
                assert source["secretRef"]["name"] in guide


def test_the_cluster_uses_our_ray_version_and_the_service_matches_the_server() -> None:
    by_kind = {body["kind"]: body for body in documents()}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if ";" not in line)
    cluster = by_kind["RayCluster"]
    assert cluster["spec"]["rayVersion"] == pins["ray"]
    assert cluster["spec"]["authOptions"]["mode"] == "token"
    assert cluster["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    for pod in pods(cluster):
        assert "$KUBERAY_GEN_RAY_START_CMD" in pod["containers"][0]["args"][0]
    server = by_kind["Deployment"]["spec"]
    labels = server["template"]["metadata"]["labels"]
    assert server["selector"]["matchLabels"].items() <= labels.items()
    assert by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    admitted = by_kind["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    head = cluster["spec"]["headGroupSpec"]["template"]["metadata"]["labels"]
    assert admitted.items() <= head.items()
    (port,) = by_kind["Service"]["spec"]["ports"]
    environment = {entry["name"]: entry.get("value") for pod in pods(cluster) for entry in pod["containers"][0]["env"]}
    (notify,) = [
        entry for pod in pods(cluster) for entry in pod["containers"][0]["env"] if entry["name"] == "YATT_NOTIFY"
    ]
    assert notify["valueFrom"]["secretKeyRef"]["optional"], "only runs with guards.notify need it"
    assert environment["PREFECT_API_URL"] == f"http://{by_kind['Service']['metadata']['name']}:{port['port']}/api"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_the_manifests() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    made = [body for body in YAML(typ="safe").load_all(built.stdout) if body]
    assert {body["metadata"].get("namespace", "yatt") for body in made} == {"yatt"}
    assert len(made) == len(documents())


def test_compose_publishes_on_loopback_only_and_reads_passwords_from_the_environment() -> None:
    compose = YAML(typ="safe").load((DEPLOY / "compose.yaml").read_text())
    assert compose["services"].keys() == {"postgresql", "group"}
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        named = {source.partition(":")[0] for source in service["volumes"] if not source.startswith((".", "/"))}
        assert named <= compose["volumes"].keys()
        for source in service["volumes"]:
            if source.startswith("."):
                assert (DEPLOY / source.partition(":")[0]).exists(), source
        assert set(service.get("depends_on", {})) <= compose["services"].keys()
    group = compose["services"]["group"]
    assert group["image"] == IMAGE
    assert group["init"] is True, "`yatt up` does not reap orphans"
    assert group["environment"]["YATT_NOTIFY"] is None, "passed on if it is set"
    assert (DEPLOY / group["build"]["context"] / group["build"]["dockerfile"]).is_file()
    for key in ("YATT_LEDGER", "PREFECT_API_DATABASE_CONNECTION_URL", "MLFLOW_BACKEND_STORE_URI"):
        database = group["environment"][key].rpartition("/")[2]
        assert f"CREATE DATABASE {database};" in (DEPLOY / "compose/databases.sql").read_text()
        assert "${YATT_DATABASE_PASSWORD}" in group["environment"][key]


def test_the_image_uses_existing_extras_and_files() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for group in re.findall(r"EXTRAS=([\w,-]+)", text) for extra in group.split(",")}
    assert {"s3", "postgresql", "server"} <= named <= project["optional-dependencies"].keys()
    assert set(re.findall(r"VLLM=([\w-]+)", text)) <= VLLM.packages.keys(), "what may provide vLLM"
    assert f"{ENGINES}/{VLLM.name}" in text, "where YATT looks for it"
    assert all((ROOT / name).exists() for name in re.findall(r"/opt/yatt/([\w.-]+\.txt)", text))
    assert f"-t {IMAGE} " in text
    assert re.search(r"^USER yatt$", text, re.MULTILINE), "not run as root"
    assert re.search(r"apt-get install [^\n]*\bwget\b", text), "KubeRay's probes call it"
    left_out = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {"**/.env", "**/*.env"} <= set(left_out), "compose reads passwords from there"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    assert "/opt/yatt/.venv/bin/yatt " in text
    copy = tmp_path / unit.name.replace("@", "@quickstart-1")
    copy.write_text(text.replace("/opt/yatt/.venv/bin/yatt", "/bin/true"))
    said = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    ours = [line for line in said.stderr.splitlines() if unit.name.partition("@")[0].partition(".")[0] in line]
    assert ours == [], said.stderr


def test_the_units_read_their_settings_from_one_file_and_stop_gracefully() -> None:
    for unit in UNITS:
        text = unit.read_text()
        assert "EnvironmentFile=/etc/yatt/yatt.env" in text
        assert "KillMode=mixed" in text and "User=yatt" in text
        (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)
        assert {int(code) for code in codes.split()} == PREVENTED[unit.name]
    names = {
        line.lstrip("# ").partition("=")[0] for line in (DEPLOY / "systemd/yatt.env.example").read_text().splitlines()
    }
    assert {"YATT_HOME", "YATT_LEDGER", "AWS_SECRET_ACCESS_KEY", "YATT_NOTIFY"} <= names


def test_units_survive_a_database_that_starts_late() -> None:
    for unit in UNITS:
        text = unit.read_text()
        assert "After=network-online.target postgresql.service\nWants=network-online.target\n" in text
        assert "\nRestart=on-failure\n" in text
    assert "\nStartLimitIntervalSec=0\n" in (DEPLOY / "systemd/yatt-group.service").read_text()


def test_an_automatic_unit_does_not_resume_a_paused_run() -> None:
    unit = (DEPLOY / "systemd/yatt-run@.service").read_text()
    assert "ExecStart=/opt/yatt/.venv/bin/yatt resume --unless-paused %i\n" in unit


def test_modules_in_deployment_files_have_the_names_of_an_installation() -> None:
    """In a wheel the folders are below `yatt`, which a checkout imports under these names, too."""
    named = {
        (path.name, name)
        for path in (ROOT / "ops" / "deploy").rglob("*")
        if path.is_file()
        for name in re.findall(r"(?<![\w.\\])(?:yatt\.)?(?:flows|ops|db)(?:\.[a-z_]+){1,}", path.read_text())
        if not name.endswith((".py", ".yaml"))
    }
    assert ("yatt.sbatch", "yatt.flows.prefect_io.prefect_serving") in named
    for file, name in named:
        assert name.startswith("yatt."), f"{file} names {name}, which no installation has"
        assert find_spec(name) is not None, f"{file} names {name}"

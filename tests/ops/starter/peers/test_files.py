"""Files of peers: scripts, commands, arguments and YAML; which program reads them; and clear errors for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.starter.peers.entries import ConfigEntry, List
from ops.starter.peers.files import read_peer_file
from ops.starter.peers.places import model_of
from ops.starter.peers.programs import PROGRAMS, Program, named_program
from ops.starter.peers.secrets import may_be_secret
from ops.starter.peers.shell import read_script
from ops.starter.peers.translating import translate
from tests.ops.starter.peers.reading import at, options
from yatt_core.errors import ConfigurationError
from yatt_core.spec.sections.model import HubModel

VERL = "python -m verl.trainer.main_ppo"


def read(folder: Path, name: str, text: str, peer: str | None = None) -> tuple[str, dict[str, Any], int | None]:
    """Returns the program, the keys and the number of processes of a file."""
    path = folder / name
    path.write_text(text)
    program, said = read_peer_file(path, None if peer is None else named_program(peer))
    return program.name, {entry.key: entry.value for entry in said.entries}, said.processes


def words(text: str) -> list[list[str]]:
    return [[said.text for said in command] for command in read_script(text, "script", "/home/one").commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a 'b c' \"d e\" # f", [["run", "a", "b c", "d e"]]),
        ("run a \\\n  b", [["run", "a", "b"]]),
        ("N=3\nrun $N ${N} ${M:-4} \"${N}x\" '$N' $M", [["run", "3", "3", "4", "3x", "$N", "$M"]]),
        ("A=(--x 1 # two\n --y '2 3')\nrun ${A[@]} z", [["run", "--x", "1", "--y", "2 3", "z"]]),
        (
            "read -r -d '' C <<EOF\nmod --x 1 \\\n --y 2\nEOF\nif [[ $1 ]]; then\nrun -m $C\nfi",
            [["[[", "$1", "]]"], ["run", "-m", "mod", "--x", "1", "--y", "2"]],
        ),
        ("K=$((2 * 3))\nrun $((K + 1)) $((1024*20)) $((K / 0))", [["run", "7", "20480", "$((K / 0))"]]),
        ("run a; go b && on c", [["run", "a"], ["go", "b"], ["on", "c"]]),
        ('X=${X:-"${HOME}/y"}\nrun $X ~/z', [["run", "/home/one/y", "~/z"]]),
        ("run $'a\\nb' $(date +%s) `pwd`", [["run", "a\nb", "$(date +%s)", "`pwd`"]]),
    ],
)
def test_words_of_a_script(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    read(tmp_path, "run.sh", f"touch {marker}\nX=$(touch {marker})\ntrl sft --output_dir $X --seed 1")
    assert not marker.exists()


def test_arguments(tmp_path: Path) -> None:
    text = "trl grpo --loss_type dapo --reward_funcs a.b c.d --use_vllm --no_remove_unused_columns --eval_strategy no"
    text += """ --beta=0.1 --x -1 --lr_scheduler_kwargs '{"min_lr_rate": 0.1}' --input_template '{}'"""
    program, keys, _ = read(tmp_path, "run.sh", text)
    assert program == "trl-grpo"
    assert keys == {
        "loss_type": "dapo",
        "reward_funcs": ["a.b", "c.d"],
        "use_vllm": True,
        "remove_unused_columns": False,
        "eval_strategy": "no",
        "beta": 0.1,
        "x": -1,
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "input_template": "{}",
    }


def test_overrides_of_hydra(tmp_path: Path) -> None:
    text = "A=1 python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml "
    text += "a.b=1e-6 +c.d=[x,'y z'] ++e='{k:1}' f=null g=True $@"
    program, keys, _ = read(tmp_path, "run.sh", text)
    assert program == "verl-ppo"
    assert keys == {
        "export A": "1",
        "--config-name": "ppo_megatron_trainer.yaml",
        "a.b": 1e-6,
        "c.d": ["x", "y z"],
        "e.k": 1,
        "f": None,
        "g": True,
        "$@": None,
    }


def test_the_launcher_says_how_many_processes_there_are(tmp_path: Path) -> None:
    text = "torchrun --nnodes 2 --nproc-per-node 8 -m openrlhf.cli.train_sft --adam.lr 1e-5"
    program, keys, processes = read(tmp_path, "run.sh", text)
    assert (program, processes) == ("openrlhf-sft", 16)
    assert keys == {"torchrun --nnodes": 2, "torchrun --nproc-per-node": 8, "adam.lr": 1e-5}
    assert read(tmp_path, "run.sh", "trl sft --num_processes 4")[2] == 4
    assert read(tmp_path, "run.yaml", "num_processes: 4\npacking: true\n")[2] == 4


def test_arguments_alone_and_a_file_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "dpo.yaml").write_text("beta: 0.2\nlearning_rate: 1e-6\n")
    program, keys, _ = read(
        tmp_path, "args.txt", "--config dpo.yaml\n--learning_rate 5e-7 --truncation_mode keep_end --beta 0.1"
    )
    assert program == "trl-dpo" or keys
    assert keys == {"config": "dpo.yaml", "learning_rate": 5e-7, "truncation_mode": "keep_end", "beta": 0.1}


def test_nested_yaml_has_the_lines_of_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "verl.yaml"
    path.write_text("actor_rollout_ref:\n  rollout:\n    n: 5\n\ntrainer:\n  nnodes: 1\n")
    program, said = read_peer_file(path)
    assert program.name == "verl-ppo"
    assert [(entry.key, entry.line) for entry in said.entries] == [
        ("actor_rollout_ref.rollout.n", 3),
        ("trainer.nnodes", 6),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.yaml",
            "model_name_or_path: x\nlearning_rate: 1e-5\n",
            r"a\.yaml: its keys may be those of .*trl-sft.*--peer",
        ),
        ("a.yaml", "what: 1\n", r"none of its keys is one of verl, TRL or OpenRLHF.*--peer"),
        ("a.yaml", "b: 1\na: [1\n", r"a\.yaml, line \d+: is not valid YAML"),
        ("a.yaml", "- 1\n", "expected a mapping"),
        ("a.yaml", "", "expected a mapping"),
        ("a.sh", "echo hello\n", "expected YAML .*or its arguments alone"),
        ("a.sh", "trl sft --seed 1\ntrl dpo --seed 1\n", "starts several runs, on lines 1, 2"),
        ("a.sh", "trl kto --seed 1\n", "line 1: trl kto is not read; yatt init reads"),
        ("a.sh", "trl sft seed\n", "line 1: 'seed' is no argument; expected --KEY VALUE"),
        ("a.sh", "python -m verl.trainer.main_ppo seed\n", "line 1: 'seed' is no override; expected KEY=VALUE"),
        ("a.sh", "trl sft --seed 1 \\\n --seed 2\n", "line 2: seed was already given on line 1; keep"),
        (
            "a.sh",
            "python -m openrlhf.cli.train_sft --pretrain a \\\n --model.model_name_or_path b\n",
            "line 2: .* on line 1, as pretrain",
        ),
        ("a.sh", "trl sft --seed 1 --seed 2\n", "line 1: seed is given twice; keep one of them"),
        (
            "a.sh",
            f"{VERL} ~trainer.device \\\n trainer.device=cpu\n",
            "line 2: trainer.device .* on line 1, as ~trainer.device",
        ),
        (
            "a.sh",
            f"{VERL} \\\n a.b=[1,{{a}}]\n",
            "line 2: a.b: .* as Hydra reads it: expected a key with a colon .* character 6",
        ),
        ("a.sh", f"{VERL} a.b=[1,[2]\n", "line 1: a.b: .* expected a comma or ]"),
        ("a.sh", f"{VERL} a.b=[1,]\n", "line 1: a.b: .* expected a value at its character 4"),
        ("a.sh", f"{VERL} a.b=[1]x\n", "line 1: a.b: .* expected nothing behind its end"),
        ("a.sh", "trl sft 'a\n", "line 1: the quotation does not end"),
        ("a.sh", "A=(1\n", "line 1: the array does not end"),
        ("a.sh", "cat <<EOF\na\n", "the here-document does not end; expected a line EOF"),
        ("a.sh", "trl sft --config none.yaml\n", "no such file beside a.sh"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, name, text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_peer_file(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8 text: byte 3"):
        read_peer_file(tmp_path / "a.yaml")


def test_a_peer_that_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, "a.yaml", "learning_rate: 1e-5\n", "trl-reward")[0] == "trl-reward"
    with pytest.raises(ConfigurationError, match=f"^--peer trl: unknown; expected one of {', '.join(PROGRAMS)}$"):
        named_program("trl")
    with pytest.raises(ConfigurationError, match=r"--peer trl-dpo: .* starts trl-sft; leave --peer out"):
        read(tmp_path, "a.sh", "trl sft --seed 1\n", "trl-dpo")


SECRET_WORD = "wp-91-zyx-sigma"
"""Occurs in no other text, so that keeping it out of everything changes nothing else."""
RUN = "python -m openrlhf.cli.train_sft --seed 1"


@pytest.mark.parametrize(
    "text",
    [
        f"{RUN} --use_wandb {SECRET_WORD}",
        f"export WANDB_API_KEY={SECRET_WORD}\n{RUN}",
        f"export PLAIN={SECRET_WORD}\n{RUN}",
        f"HF_TOKEN={SECRET_WORD} {RUN}",
        f"K={SECRET_WORD}\n{RUN} --logger.wandb.key $K",
        f"HF_TOKEN={SECRET_WORD}\n{RUN} --some_name $HF_TOKEN",
        f"{RUN} --wandb_token {SECRET_WORD}",
        f"{RUN} --made.up.password {SECRET_WORD}",
        f"{RUN} --remote_url https://me:{SECRET_WORD}@there/x",
        f"{RUN} --made_up https://there/x?token={SECRET_WORD}",
        f'ray job submit --runtime-env-json=\'{{"env_vars": {{"X": "{SECRET_WORD}"}}}}\' -- {RUN}',
        f"docker run -e WANDB_API_KEY={SECRET_WORD} image {RUN}",
        f"trl sft --seed 1 --env WANDB_API_KEY={SECRET_WORD}",
        f"trl sft --seed 1 --hub_token {SECRET_WORD}",
        f"python -m verl.trainer.main_ppo '+x={{api_key: {SECRET_WORD}, y: [1]}}'",
        f"python -m verl.trainer.main_ppo +ray_kwargs.ray_init.runtime_env.env_vars.X={SECRET_WORD}",
    ],
)
def test_a_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("yatt_core.logs._kept", set())
    path = tmp_path / "a.sh"
    path.write_text(text)
    _, said = read_peer_file(path)
    assert any(SECRET_WORD in str(entry.value) for entry in said.entries)
    assert SECRET_WORD not in str([entry.shown for entry in said.entries])


def test_the_environment_of_a_trl_file_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("env:\n  X: very-secret\nlearning_rate: 1.0e-5\npacking: true\n")
    _, said = read_peer_file(path)
    assert [entry.shown for entry in said.entries] == ["(not shown)", 1e-5, True]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_ordinary_keys_with_such_names_are_shown(program: Program) -> None:
    hidden = {key for key in (*program.defaults, *program.older) if may_be_secret(key)}
    allowed = {"env", "hub_token", "logger.wandb.key", "use_wandb", "data.balance_dp_token"}
    assert {key for key in hidden if not key.startswith(("ray_kwargs.", "distillation."))} <= allowed
    assert ConfigEntry("data.balance_dp_token", True, 1).shown is True


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Qwen/Qwen2.5-0.5B", True),
        ("org/name-", False),
        ("org/n\u00e4me", False),
        ("org/" + "n" * 200, False),
        ("/org/name", False),
        ("a/b/c", False),
        ("data/train.parquet", False),
    ],
)
def test_what_is_no_name_of_the_hub_is_a_path(tmp_path: Path, text: str, named: bool) -> None:
    model = model_of(text, tmp_path)
    assert model["kind"] == ("hub" if named else "folder")
    if named:
        HubModel.model_validate(model)


def test_hyphens_and_negations_are_those_of_the_program(tmp_path: Path) -> None:
    text = "trl sft --per-device-train-batch-size 4 --no-remove-unused-columns --no_made_up --max-steps 8 --seed 1"
    text += " --model-name-or-path org/model --dataset-name org/rows --num-processes 2"
    (tmp_path / "a.sh").write_text(text)
    program, said = read_peer_file(tmp_path / "a.sh")
    assert said.processes == 2
    assert [(entry.key, entry.value) for entry in said.entries][:3] == [
        ("per-device-train-batch-size", 4),
        ("remove-unused-columns", False),
        ("no_made_up", True),
    ]
    translation = translate(program, said, "a.sh", options(folder=tmp_path))
    assert [verdict.key for verdict in translation.lists[List.UNKNOWN]] == ["no_made_up"]
    assert at(translation, "data.prompts_per_iteration") == 8
    keys = read(tmp_path, "b.sh", "python -m openrlhf.cli.train_ppo_ray --no_advantage_std_norm")[1]
    assert keys == {"no_advantage_std_norm": True}
    with pytest.raises(ConfigurationError, match="line 1: max-steps is given twice, as max_steps as well; keep one"):
        read(tmp_path, "c.sh", "trl sft --max_steps 1 --max-steps 2")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_an_older_name_stands_for_a_key_of_this_version_or_for_itself(program: Program) -> None:
    for older, present in program.older.items():
        assert present in program.defaults or present in program.older, (older, present)
        assert program.older.get(present, present) == present, (older, present)

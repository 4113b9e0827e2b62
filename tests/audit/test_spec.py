"""A specification is checked as a whole: every problem with its path, at once, and nothing runs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedleak.audit.plan import make_plan
from fedleak.audit.spec import make_spec, read_spec
from fedleak.cli import app
from fedleak.errors import SpecError

GOOD = """
[data]
name = "orl"
size = 16
clients = 3

[model]
name = "mlp"

[protocol]
name = "fedavg"
examples = 1

[[attacks]]
name = "dlm_plus"
steps = 5
"""

GOOD_SPECS = {
    "the smallest one": GOOD,
    "a sweep over protocols and a number": GOOD.replace(
        '[protocol]\nname = "fedavg"\nexamples = 1\n',
        '[sweep]\nprotocol = [{ name = "fedsgd" }, { name = "fedavg", epochs = 2 }]\n"model.hidden" = [8, 16]\n',
    ),
    "arms, a chain, a deployment": 'seeds = [1, 2]\nmetrics = ["psnr", "recovered"]\nthreshold = 25\n'
    + GOOD
    + """
[[defenses]]
name = "none"
[[defenses]]
arm = "shipped"
name = "clip"
norm = 1.0
[[defenses]]
arm = "shipped"
name = "gaussian"
sigma = 0.1
[deployment]
arm = "shipped"
""",
}

GOOD_SPECS["a case of its own"] = (
    GOOD + '[[cases]]\nmodel = { name = "lenet" }\nprotocol = { name = "fedsgd", examples = 1 }\n'
)

# name: (text, what the answer must contain)
BROKEN_SPECS: dict[str, tuple[str | bytes, list[str]]] = {
    "empty": ("", ["the file is empty"]),
    "a case that is no table": (GOOD.replace("[data]", "cases = [3]\n[data]"), ["cases", "must be a list of tables"]),
    "a case with an unknown key": (GOOD + "[[cases]]\nmodels = {}\n", ["cases.0.models", "did you mean 'model'"]),
    "only a comment": ("# nothing\n", ["the file is empty"]),
    "not UTF-8": (b'[data]\nname = "\xff\xfe"\n', ["not UTF-8"]),
    "not TOML": ("[data\n", ["not TOML"]),
    "unknown table": (GOOD + "[protocoll]\n", ["protocoll: unknown key; did you mean 'protocol'?"]),
    "no data": (
        GOOD.replace('[data]\nname = "orl"\nsize = 16\nclients = 3\n', ""),
        ["data: the table [data] is missing"],
    ),
    "unknown data set": (GOOD.replace('"orl"', '"oral"'), ["data.name: unknown dataset 'oral'; did you mean 'orl'?"]),
    "unknown data key": (GOOD.replace("size = 16", "sise = 16"), ["data.sise: unknown key; did you mean 'size'?"]),
    "no clients": (GOOD.replace("clients = 3", "clients = 0"), ["data.clients", "greater than 0", "found 0"]),
    "unknown partition": (GOOD.replace("clients = 3", 'partition = "random"'), ["data.partition"]),
    "unknown model": (GOOD.replace('"mlp"', '"mpl"'), ["model.name: unknown model 'mpl'; did you mean 'mlp'?"]),
    "code in a spec": (GOOD.replace('"mlp"', '"os:getcwd"'), ["model.name", "--allow-code"]),
    "unknown protocol": (GOOD.replace('"fedavg"', '"fedagv"'), ["protocol.name", "did you mean 'fedavg'?"]),
    "protocol without a name": (GOOD.replace('name = "fedavg"\n', ""), ["protocol.name: is required"]),
    "negative learning rate": (GOOD.replace("examples = 1", "lr = -0.1"), ["protocol.lr", "found -0.1"]),
    "a word for a number": (GOOD.replace("steps = 5", 'steps = "many"'), ["attacks.0.steps", "'many'"]),
    "unknown attack": (GOOD.replace('"dlm_plus"', '"dlmplus"'), ["attacks.0.name", "did you mean 'dlm_plus'?"]),
    "unknown attack key": (GOOD + "stepz = 4\n", ["attacks.0.stepz: unknown key; did you mean 'steps'?"]),
    "unknown preset": (GOOD + 'preset = "papr"\n', ["attacks.0.preset"]),
    "the same attack twice": (GOOD + '[[attacks]]\nname = "dlm_plus"\nsteps = 5\n', ["stands twice"]),
    "unknown defense": (GOOD + '[[defenses]]\nname = "gausian"\n', ["defenses.0.name", "did you mean 'gaussian'?"]),
    "defense without its number": (GOOD + '[[defenses]]\nname = "gaussian"\n', ["defenses.0.sigma: is required"]),
    "negative noise": (GOOD + '[[defenses]]\nname = "gaussian"\nsigma = -1\n', ["defenses.0.sigma", "found -1"]),
    "the same arm twice": (GOOD + '[[defenses]]\nname = "none"\n[[defenses]]\nname = "identity"\n', ["two arms"]),
    "a name for no defense": (GOOD + '[[defenses]]\nname = "none"\narm = "plain"\n', ["always called 'none'"]),
    "unknown metric": ('metrics = ["psnr", "sim"]\n' + GOOD, ["metrics.1: unknown metric 'sim'; did you mean 'ssim'?"]),
    "seeds are words": ('seeds = ["a"]\n' + GOOD, ["seeds: must be a list of different whole numbers"]),
    "a seed twice": ("seeds = [1, 1]\n" + GOOD, ["seeds: must be a list of different whole numbers"]),
    "sweep leads nowhere": (
        GOOD + '[sweep]\n"attacks.7.steps" = [1, 2]\n',
        ["sweep.attacks.7.steps: leads nowhere: '7' is no entry of attacks, counted from 0: attacks.0 (dlm_plus)"],
    ),
    "sweep by a name": (
        GOOD + '[[defenses]]\nname = "none"\n[[defenses]]\nname = "clip"\nnorm = 1.0\n'
        '[sweep]\n"defenses.clip.norm" = [1, 2]\n',
        ["sweep.defenses.clip.norm: leads nowhere", "'clip' is no entry of defenses", "defenses.1 (clip)"],
    ),
    "sweep from the end": (GOOD + '[sweep]\n"attacks.-1.steps" = [1, 2]\n', ["'-1' is no entry of attacks"]),
    "sweep into a word": (
        GOOD + '[sweep]\n"protocol.name.x" = [1, 2]\n',
        ["sweep.protocol.name.x: leads nowhere: protocol.name is 'fedavg', which has nothing inside"],
    ),
    "sweep over nothing": (GOOD + '[sweep]\n"protocol.lr" = []\n', ["sweep.protocol.lr: must be a list"]),
    "sweep of an unknown key": (
        GOOD + '[sweep]\n"protocol.lrr" = [1.0]\n',
        ["protocol.lrr: unknown key; did you mean 'lr'?"],
    ),
    "unknown deployed arm": (
        GOOD + '[deployment]\narm = "shiped"\n',
        ["deployment.arm: no arm 'shiped'; the arms are 'none'\n"],
    ),
    "deployed arm whose defense has a problem": (
        GOOD + '[[defenses]]\nname = "none"\n[[defenses]]\nname = "clip"\nnrm = 1\n'
        '[deployment]\narm = "clip(norm=1)"\n',
        ["defenses.1.nrm: unknown key", "the arms are 'none', and those whose defenses have a problem"],
    ),
    "unknown key like no other": (
        GOOD.replace("examples = 1", "zzz = 1"),
        ["protocol.zzz: unknown key; known: rounds, lr,"],
    ),
    "knowledge is not disclosed": (
        GOOD.replace("examples = 1", "disclose = []"),
        ["protocol.disclose: attack 'dlm_plus' needs samples"],
    ),
    "attack kept to no protocol here": (GOOD + 'on = ["fedsgd"]\n', ["attacks.0.name", "fedavg"]),
    "time limit is nothing": ("time_limit = 0\n" + GOOD, ["time_limit: must be a number of seconds above 0"]),
    "epsilon asked of an empirical defense": (
        GOOD + '[[defenses]]\nname = "sparsify"\nfraction = 0.5\nepsilon = 1.0\n',
        ["defenses.0.epsilon: dropping numbers proves no differential privacy; use gaussian", "found 1.0"],
    ),
    "epsilon asked of noise": (
        GOOD + '[[defenses]]\nname = "gaussian"\nepsilon = 1.0\n',
        ["defenses.0.epsilon: follows from noise, rounds and bound; give sigma", "found 1.0"],
    ),
    "threshold is a word": ('threshold = "high"\n' + GOOD, ["threshold: must be a number"]),
}


DEEP = '[[attacks]]\nname = "msa"\nnetwork = { name = "mlp", hiden = 3 }\n'


@pytest.mark.parametrize("name", GOOD_SPECS)
def test_good_specs_pass(tmp_path: Path, name: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(GOOD_SPECS[name])
    answer = CliRunner().invoke(app, ["check", str(path), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["ok"] is True


@pytest.mark.parametrize("name", BROKEN_SPECS)
def test_broken_specs_are_refused_with_the_path(tmp_path: Path, name: str) -> None:
    text, expected = BROKEN_SPECS[name]
    path = tmp_path / "spec.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    answer = CliRunner().invoke(app, ["check", str(path)])
    assert answer.exit_code == 2, answer.output
    for words in expected:
        assert words in answer.stderr
    assert "Traceback" not in answer.output


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        GOOD.replace("size = 16", "sise = 16").replace('"mlp"', '"mpl"').replace("steps = 5", "steps = -5")
        + '[[defenses]]\nname = "gaussian"\n'
    )
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    paths = {problem.path for problem in caught.value.problems}
    assert {"data.sise", "model.name", "attacks.0.steps", "defenses.0.sigma"} <= paths


def test_a_problem_deep_in_a_table_comes_alone(tmp_path: Path) -> None:
    """An attack that could not be made is not also said to read nothing of what is sent."""
    path = tmp_path / "spec.toml"
    path.write_text(GOOD.replace('"fedavg"', '"fedmd"').split("[[attacks]]")[0] + DEEP)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    assert [problem.path for problem in caught.value.problems if problem.path.startswith("attacks")] == [
        "attacks.0.network.hiden"
    ]


def test_a_swept_attack_leaves_the_others_alone(tmp_path: Path) -> None:
    more = '[[attacks]]\nname = "dlg"\nsteps = 3\n[sweep]\n"attacks.1.steps" = [3, 4, 5]\n'
    path = tmp_path / "spec.toml"
    path.write_text(GOOD + more)
    plan = make_plan(read_spec(path), tmp_path, "cpu")
    steps = [(t.choice.name, t.where().get("attacks.1.steps")) for t in plan.trials if t.choice is not None]
    first = read_spec(path).points[0].attacks[0].name
    assert steps == [(first, None), ("dlg", 3), ("dlg", 4), ("dlg", 5)]
    assert json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)["attack_trials"] == len(steps)


def test_a_swept_strength_is_about_its_own_arm_alone(tmp_path: Path) -> None:
    """The other arms are the same at every point: they have one place in the run, and count once."""
    path = tmp_path / "spec.toml"
    arms = '[[defenses]]\nname = "identity"\n[[defenses]]\nname = "gaussian"\nsigma = 1.0\n'
    arms += '[[defenses]]\nname = "sparsify"\nfraction = 0.5\n'
    axes = '[sweep]\n"defenses.1.sigma" = [0.1, 1.0]\n"defenses.2.fraction" = [0.2, 0.5, 0.9]\n"protocol.lr" = [0.1]\n'
    path.write_text(GOOD + arms + axes)
    spec = read_spec(path)
    places = {(arm.label, *sorted(point.where_of(arm).items())) for point in spec.points for arm in point.arms}
    lr = ("protocol.lr", 0.1)
    assert places == {
        ("none", lr),
        *((f"gaussian(sigma={s:g})", ("defenses.1.sigma", s), lr) for s in (0.1, 1.0)),
        *((f"sparsify(fraction={f:g})", ("defenses.2.fraction", f), lr) for f in (0.2, 0.5, 0.9)),
    }
    answer = CliRunner().invoke(app, ["check", str(path), "--json"])
    assert json.loads(answer.stdout)["attack_trials"] == len(spec.points[0].attacks) * len(spec.seeds) * 6


def test_the_resolved_text_gives_the_same_spec_again(tmp_path: Path) -> None:
    for text in GOOD_SPECS.values():
        (tmp_path / "a.toml").write_text(text)
        first = read_spec(tmp_path / "a.toml")
        (tmp_path / "b.toml").write_text(first.text)
        second = read_spec(tmp_path / "b.toml")
        assert second.text == first.text
        assert second.points == first.points
        assert (second.seeds, second.metrics, second.deployed) == (first.seeds, first.metrics, first.deployed)


def test_set_changes_one_value_and_a_wrong_path_is_told(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(GOOD)
    assert read_spec(path, [("attacks.0.steps", 9)]).points[0].attacks[0].attack.steps == 9
    with pytest.raises(SpecError, match="leads nowhere"):
        read_spec(path, [("attacks.4.steps", 9)])


def test_an_attack_in_a_sweep_runs_where_it_can(tmp_path: Path) -> None:
    spec = make_spec(
        {
            "data": {"name": "orl"},
            "model": {"name": "mlp"},
            "attacks": [{"name": "dlg", "on": ["fedsgd"]}, {"name": "dlm_plus"}],
            "sweep": {"protocol": [{"name": "fedsgd"}, {"name": "fedavg"}]},
        }
    )
    assert [[c.name for c in point.attacks] for point in spec.points] == [["dlg", "dlm_plus"], ["dlm_plus"]]


def test_entries_that_share_a_name_are_told_apart_by_what_differs() -> None:
    spec = make_spec(
        {
            "data": {"name": "orl"},
            "model": {"name": "mlp"},
            "protocol": {"name": "fedsgd"},
            "attacks": [{"name": "dlg", "steps": 3}, {"name": "dlg", "steps": 5}],
        }
    )
    assert [dict(c.extra) for c in spec.points[0].attacks] == [{"attack.steps": 3}, {"attack.steps": 5}]


def test_cases_lie_beside_the_sweep_and_replace_whole_tables() -> None:
    tables = {
        "data": {"name": "orl", "size": 16, "clients": 3},
        "model": {"name": "mlp"},
        "protocol": {"name": "fedavg", "examples": 1},
        "attacks": [{"name": "dlm_plus", "steps": 5}],
        "sweep": {"model.hidden": [8, 16]},
        "cases": [{"model": {"name": "lenet"}, "attacks": [{"name": "dlg"}]}],
    }
    spec = make_spec(tables)
    models = [(point.model.name, point.model.arguments.get("hidden")) for point in spec.points]
    assert models == [("mlp", 8), ("mlp", 16), ("lenet", None)]
    assert [[choice.name for choice in point.attacks] for point in spec.points] == [["dlm_plus"], ["dlm_plus"], ["dlg"]]
    again = make_spec(tomllib.loads(spec.text))
    assert [point.attacks for point in again.points] == [point.attacks for point in spec.points]
    assert again.text == spec.text


def test_defenses_that_the_protocol_has_no_use_for_are_named_before_anything_runs() -> None:
    tables = tomllib.loads(GOOD)
    tables["defenses"] = [{"name": "top_k", "k": 1}, {"name": "clip", "norm": 1.0}, {"name": "one_shot"}]
    with pytest.raises(SpecError) as problem:
        make_spec(tables)
    text = str(problem.value)
    assert "'top_k' is about predictions, but fedavg sends weights" in text
    assert "'one_shot' is about predictions, but fedavg sends weights" in text
    assert "clip" not in text.replace("(clip, sparsify", "")

    tables["protocol"], tables["attacks"] = {"name": "fedmd"}, [{"name": "msa"}]
    tables["defenses"].append({"name": "dp_sgd", "noise_multiplier": 1.0, "max_grad_norm": 1.0})
    with pytest.raises(SpecError) as problem:
        make_spec(tables)
    assert "'dp_sgd' acts on the gradients of single examples" in str(problem.value)
    assert "top_k" not in str(problem.value)


FACES: dict[str, Any] = {
    "data": {"name": "orl", "size": 16, "clients": 2, "public": {"targets": 8}},
    "model": {"name": "mlp"},
    "protocol": {"name": "fedmd"},
    "attacks": [{"name": "pli"}],
}
UNFIT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no public set": ({"data": {"name": "orl", "clients": 2}}, "data.public", "is required: the clients of fedmd"),
    "no labels": (
        {"data": {**FACES["data"], "public": {"targets": 8, "labels": False}}},
        "data.public.labels",
        "fedmd trains on the labels",
    ),
    "nobody in both domains": (
        {"data": {"name": "mnist", "clients": 2, "public": {"name": "emnist", "labels": True, "alpha": 0.5}}},
        "attacks",
        "'pli' with prior = 'autoencoder': the public set 'emnist' shows nobody in both domains",
    ),
    "nothing like the private pictures": (
        {"data": {"name": "mnist", "clients": 2, "public": {"name": "emnist", "labels": True}}},
        "attacks",
        "all of the public set 'emnist' are of another; mix some in (data.public.alpha above 0)",
    ),
    "nothing like them, and no labels": (
        {"data": {"name": "mnist", "clients": 2, "public": {"name": "emnist"}}, "protocol": {"name": "dsfl"}}
        | {"attacks": [{"name": "tbi"}]},
        "attacks",
        "'tbi' learns what a private picture looks like from public ones of the private domain",
    ),
    "only targets are blurred": (
        {"data": {**FACES["data"], "public": {"targets": 8, "domain": "blur", "blur": 4}}},
        "attacks",
        "say prior_blur = 4",
    ),
    "more clients than targets": ({"data": {**FACES["data"], "clients": 9}}, "data.clients", "at most 8 clients"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_public_set_that_cannot_serve_is_refused_before_anything_runs(name: str) -> None:
    changes, path, words = UNFIT[name]
    with pytest.raises(SpecError) as caught:
        make_spec({**FACES, **changes})
    (problem,) = caught.value.problems
    assert problem.path == path
    assert words in problem.message


@pytest.mark.parametrize(
    ("changes", "attack"),
    [
        (UNFIT["no labels"][0] | {"protocol": {"name": "fedmd", "public_labels": False}}, {}),
        (UNFIT["no labels"][0] | {"protocol": {"name": "dsfl"}}, {}),  # without labels the prior is the mean
        (UNFIT["nobody in both domains"][0], {"prior": "mean"}),
        (UNFIT["nobody in both domains"][0], {"gamma": 0.0}),
        (UNFIT["only targets are blurred"][0], {"prior_blur": 4}),
    ],
)
def test_the_ways_out_of_an_unfit_public_set(changes: dict[str, Any], attack: dict[str, Any]) -> None:
    assert make_spec({**FACES, **changes, "attacks": [{"name": "pli", **attack}]}).points


DRAWN: dict[str, Any] = {
    "data": {"name": "emnist", "clients": 2, "public": {"name": "mnist", "examples": 500}},
    "model": {"name": "mlp"},
    "protocol": {"name": "fedmd", "preset": "adamsa", "alignment": 100},
    "attacks": [{"name": "adamsa"}, {"name": "msa"}],
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"defenses": [{"name": "round", "decimals": 1}, {"name": "one_shot"}]},
        {"attacks": [{"name": "adamsa", "round": 2}]},
        {"attacks": [{"name": "adamsa", "round": -9}]},  # of ten rounds the second
    ],
)
def test_history_over_other_examples_in_every_round_is_refused_before_anything_runs(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({**DRAWN, **changes})
    (problem,) = caught.value.problems
    assert problem.path == "protocol.alignment"
    assert "100" in problem.message
    assert "'adamsa' averages up to 4 rounds" in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"attacks": [{"name": "msa"}]},
        {"attacks": [{"name": "adamsa", "T0": 0}]},
        {"attacks": [{"name": "adamsa", "round": 1}]},
        {"attacks": [{"name": "adamsa", "round": -10}]},  # of ten rounds the first
        {"protocol": {"name": "fedmd", "preset": "adamsa"}},
        {"protocol": {**DRAWN["protocol"], "alignment": 500}},  # all of them, every time
        {"protocol": {**DRAWN["protocol"], "rounds": 1}},
        {"protocol": {**DRAWN["protocol"], "attacked_round": 1, "record": "attacked"}},
        {"defenses": [{"name": "one_shot"}]},
    ],
)
def test_the_ways_out_of_a_history_over_other_examples(changes: dict[str, Any]) -> None:
    assert make_spec({**DRAWN, **changes}).points


MIXED: dict[str, Any] = {
    "data": {"name": "emnist", "clients": 2, "public": {"name": "mnist", "examples": 50, "alpha": 1}},
    "model": {"name": "mlp"},
    "protocol": {"name": "fedmd", "preset": "adamsa"},
    "attacks": [{"name": "msa"}],
}


@pytest.mark.parametrize(
    "changes",
    [
        {"defenses": [{"name": "none"}, {"name": "cross_domain"}]},
        {"defenses": [[{"name": "cross_domain"}, {"name": "round", "decimals": 1}]]},
        {"defenses": [{"name": "cross_domain"}], "sweep": {"data.public.alpha": [0.0, 1.0]}},
    ],
)
def test_a_public_set_of_which_cross_domain_leaves_nothing_is_refused_before_anything_runs(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({**MIXED, **changes})
    (problem,) = caught.value.problems
    assert problem.path == "data.public.alpha"
    assert "choose a smaller alpha" in problem.message
    assert make_spec({**MIXED, **changes, "defenses": []}).points
    assert make_spec({**MIXED, **changes, "sweep": {"data.public.alpha": [0.0, 0.5]}}).points


ROUNDS: dict[str, Any] = {**MIXED, "data": {"name": "emnist", "clients": 2, "public": {"name": "mnist"}}}
SHORT: dict[str, Any] = {"name": "fedmd", "preset": "adamsa", "rounds": 3}


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"protocol": SHORT, "attacks": [{"name": "msa", "round": 4}]}, 3),
        ({"protocol": SHORT, "attacks": [{"name": "adamsa", "round": -4}]}, 3),
        (
            {
                "protocol": {**SHORT, "attacked_round": 2, "record": "attacked"},
                "attacks": [{"name": "msa", "round": 3}],
            },
            2,
        ),
        ({"defenses": [{"name": "one_shot"}], "attacks": [{"name": "msa", "round": 2}]}, 1),
        ({"protocol": SHORT, "attacks": [{"name": "msa"}], "sweep": {"attacks.0.round": [1, 4]}}, 3),
        ({"protocol": {"name": "fedavg"}, "attacks": [{"name": "dlm_plus", "round": 2}]}, 1),
    ],
)
def test_a_round_that_no_federation_records_is_refused_before_anything_runs(changes: dict[str, Any], held: int) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({**ROUNDS, **changes})
    (problem,) = caught.value.problems
    assert problem.path == "attacks.0.round"
    assert f"holds rounds 1 to {held}; ask for one of these, or raise protocol.rounds" in problem.message


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": SHORT, "attacks": [{"name": "msa", "round": -3}]},
        {"attacks": [{"name": "msa", "round": 2}], "defenses": [{"name": "none"}, {"name": "one_shot"}]},
        {"attacks": [{"name": "msa", "round": 4}], "sweep": {"protocol.rounds": [3, 5]}},
    ],
)
def test_a_round_that_some_federation_records_is_fine(changes: dict[str, Any]) -> None:
    assert make_spec({**ROUNDS, **changes}).points


SPARSE: dict[str, Any] = {"name": "fedmd", "preset": "adamsa", "rounds": 5, "evaluate_every": 3}


@pytest.mark.parametrize(
    ("changes", "tested"),
    [
        ({"attacks": [{"name": "msa", "round": 2}]}, "3, 5"),
        ({"attacks": [{"name": "adamsa", "round": -2}]}, "3, 5"),
        ({"attacks": [{"name": "msa", "round": 4}], "sweep": {"protocol.rounds": [5, 7]}}, "3, 5, 6, 7"),
        (
            {
                "protocol": {**SPARSE, "attacked_round": 4, "record": "attacked"},
                "attacks": [{"name": "msa", "round": 2}],
            },
            "3, 4",
        ),
    ],
)
def test_a_copy_of_a_model_that_nobody_tests_is_refused_before_anything_runs(
    changes: dict[str, Any], tested: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec({**ROUNDS, "protocol": SPARSE, **changes})
    (problem,) = caught.value.problems
    assert problem.path == "attacks.0.round"
    assert f"tested in {tested} only; ask for one of these" in problem.message
    assert "protocol.evaluate_every = 1" in problem.message
    often = {**changes.get("protocol", SPARSE), "evaluate_every": 1}
    assert make_spec({**ROUNDS, **changes, "protocol": often}).points


@pytest.mark.parametrize(
    "changes",
    [
        {"attacks": [{"name": "msa"}, {"name": "adamsa", "round": 3}, {"name": "msa", "round": -3, "epochs": 2}]},
        {"attacks": [{"name": "msa", "round": 1}], "defenses": [{"name": "none"}, {"name": "one_shot"}]},
        {"attacks": [{"name": "msa", "round": 4}], "sweep": {"protocol.rounds": [5, 4]}},
    ],
)
def test_a_round_whose_models_are_tested_somewhere_is_fine(changes: dict[str, Any]) -> None:
    assert make_spec({**ROUNDS, "protocol": SPARSE, **changes}).points

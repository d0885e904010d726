"""One registry of random numbers: each use has a stream of its own, and nothing is drawn past the registry."""

from __future__ import annotations

import ast
import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from leakcore import attacks, audit, bounds, datasets, defenses, dpsgd, experiments, kernels, mechanisms, models
from leakcore.attacks import membership, poisoning
from leakcore.kernels import Stream
from tests.public.arrays import CALLS, resolve
from tests.public.streams_recorder import Draw, overlaps, recorded

PACKAGE = Path(kernels.__file__).resolve().parent.parent
DOORS = "kernels/random.py"
ALLOWED = {
    # One seed for each step from the generator that the caller gave, as Opacus's optimizer takes it.
    ("dpsgd/fused/fused_optimizer.py", "torch.randint"),
    # Drawn with a generator of the registry.
    ("models/networks.py", "parameter.uniform_"),
    ("attacks/labels/forward_rounding.py", "torch.rand"),
    ("attacks/inversion/problem.py", "torch.rand"),
    ("attacks/reconstruction/reconstructor.py", "torch.randn"),
    ("experiments/leakage/epochs_and_noise.py", "torch.randn"),
    # Puts the caller's generator back, after a look at whether the model draws from it.
    ("attacks/labels/forward_rounding.py", "torch.set_rng_state"),
    ("gradients/layers.py", "torch.set_rng_state"),
    # Puts back what a trial of the user's loop drew.
    ("dpsgd/rows/preserve_state.py", "random"),
    ("dpsgd/rows/preserve_state.py", "np.random.get_state"),
    ("dpsgd/rows/preserve_state.py", "np.random.set_state"),
    # Seeds a user's model from the registry.
    ("gradients/module_state.py", "random"),
    ("gradients/module_state.py", "np.random.seed"),
    ("gradients/module_state.py", "generator.manual_seed"),
    # Names of files and tokens of locks, no part of a result.
    ("_base/run_folder.py", "secrets"),
    ("_base/writing.py", "secrets"),
}
"""What stands outside the door, each with its reason."""
MAKERS = {
    "default_rng", "RandomState", "SeedSequence", "manual_seed", "manual_seed_all", "set_rng_state", "seed_all",
    *(f"{name}_" for name in ("uniform", "normal", "random", "bernoulli", "exponential", "xavier_uniform",
                              "xavier_normal", "kaiming_uniform", "kaiming_normal", "trunc_normal", "orthogonal")),
}  # fmt: skip
SAMPLERS = {"Generator", "seed", *(name + like for like in ("", "_like") for name in (
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"
))}  # fmt: skip


@functools.cache
def _files() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((str(p.relative_to(PACKAGE)), ast.parse(p.read_text(encoding="utf-8"))) for p in paths)


def _forbidden(tree: ast.Module) -> list[tuple[str, int]]:
    """Calls that make a generator, seed one, or draw from a global one."""
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            calls += [(m, node.lineno) for m in modules if m.startswith(("random", "secrets", "numpy.random"))]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        of_numpy = isinstance(owner, ast.Attribute) and owner.attr == "random" and ast.unparse(owner) != "torch.random"
        if of_numpy or name in MAKERS or (name in SAMPLERS and ast.unparse(owner) == "torch"):
            calls.append((ast.unparse(node.func), node.lineno))
    return calls


def test_draws_outside_the_registry():
    past = [
        f"{name}:{line}: {what}"
        for name, tree in _files()
        if name != DOORS
        for what, line in _forbidden(tree)
        if (name, what) not in ALLOWED
    ]
    assert past == []


@pytest.mark.parametrize(
    "line",
    ["np.random.default_rng([seed, 3])", "torch.manual_seed(0)", "torch.Generator().manual_seed(1)", "import random",
     "np.random.RandomState(4)", "torch.randn(3)", "rng = numpy.random.default_rng()",
     "from numpy.random import Philox"],
)  # fmt: skip
def test_negative_control(line):
    assert _forbidden(ast.parse(line))


def test_seeds_of_libraries():
    """random_state= takes what `kernels.subseed` gave."""
    for name, tree in _files():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg in ("random_state", "rng") and not isinstance(
                node.value, ast.Name
            ):  # fmt: skip
                raise AssertionError(f"{name}:{node.value.lineno}: {ast.unparse(node)}")


def test_seed_arithmetic():
    """`seed + i`, `seed * k`: two parents then share children."""
    for name, tree in _files():
        for node in ast.walk(tree):
            if not isinstance(node, ast.BinOp):
                continue
            for side in (node.left, node.right):
                last = side.attr if isinstance(side, ast.Attribute) else getattr(side, "id", "")
                assert not last.endswith("seed") or isinstance(node.op, ast.BitAnd | ast.RShift), (
                    f"{name}:{node.lineno}"
                )


def test_distance_of_streams():
    """No word belongs to two members, and none leaves its 32 bits."""
    spans = sorted((int(s), int(s) + s.steps, s.name) for s in Stream)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert spans[0][0] > 0
    assert spans[-1][1] <= 2**32


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """What stands in the function, less the functions inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef):
            yield node
            waiting += ast.iter_child_nodes(node)


@pytest.mark.full
def test_users_of_streams():
    """A member is one use: one function of the package names it. CALLER is named by none."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, tree in _files():
        if name == "kernels/streams.py":
            continue
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in _own(function):
                    if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] == "Stream":
                        users[node.attr].add(f"{name}:{function.name}")
    native = {"MIXTURE", "MIXTURE_PICK", "MIXTURE_ONE", "MIXTURE_ONE_PICK", "ALLOCATION", "ALLOCATION_PICK"}
    assert set(users) == set(Stream.__members__) - native - {"CALLER"}
    shared = {member: sorted(where) for member, where in users.items() if len(where) > 1}
    assert shared == {}


def test_last_step():
    with pytest.raises(ValueError, match=r"`step` must be in \[0, 0\], got 1"):
        kernels.uniform((1, 1), seed=0, purpose=Stream.CANARY_COINS, step=1)


def test_seed_of_parts():
    """Epoch 5 of an extractor shuffled by the very numbers that were the canaries' coins, epoch 4 by membership's."""
    images, labels = np.zeros((12, 1, 4, 4), np.float32), np.arange(12) % 2
    extractor = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    with recorded() as draws:
        models.train_extractor(extractor, images, labels, epochs=9, seed=3)
        membership.coins(4, 12, seed=3)
        membership.canary_coins(4, 12, seed=3)
        membership.canaries(images.reshape(12, 16) + 1, 2, count=4, seed=3)
        datasets.digits().split(5, seed=3)
        poisoning.ZeroInput().poison(images.reshape(12, 16), labels, k=2, seed=3, adjacency="replace")
    assert {d.seed for d in draws} >= {3}
    assert overlaps(draws) == []


def test_recorder_overlap():
    one, other = Draw(3, int(Stream.BATCH), 0, 4, "a.py:f"), Draw(3, int(Stream.BATCH), 3, 5, "b.py:g")
    (named,) = overlaps([one, other])
    assert named == "a.py:f and b.py:g: seed 3, BATCH step 0, row 3"
    assert overlaps([one, Draw(3, int(Stream.BATCH), 4, 5, "b.py:g")]) == []
    assert overlaps([one, Draw(3, int(Stream.BATCH) + 1, 0, 4, "b.py:g")]) == []


DRAWS_NOTHING = (
    "accounting.", "bounds.discrete_prior", "bounds.calibrate_noise", "bounds.laplace.compose", "bounds.membership",
)  # fmt: skip
"""Public functions that take a second and no seed."""


@pytest.mark.full
def test_seed_of_public_functions():
    """Every public function is called with the seed 0: no two functions draw the same numbers."""
    with recorded() as draws:
        for name, call in CALLS.items():
            if not name.startswith(DRAWS_NOTHING):
                resolve(name)(**call.arguments())
        bounds.reconstruction(1.0, 0.5, 3, kappa=0.1, method="dkw-bennett", num_samples=2000)
    assert overlaps(draws) == []
    assert len({d.site for d in draws}) > 30


def test_seed_of_games_and_audits():
    """Coins, batches, noise, initial parameters and attacks on them, all seeded alike."""
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6)).astype(np.float32), np.arange(40) % 3
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.5, "steps": 4, "seed": 5}
    ensemble = dpsgd.Ensemble((6, 3), sample_rate=dpsgd.PoissonBatches(0.5, expected_batch_size=20.0), **settings)
    noisy = dpsgd.Ensemble(dpsgd.Network((6, 3), initialisation=dpsgd.Initialisation("glorot", noise=1.0)), **settings)
    with recorded() as draws:
        membership.play(ensemble, x, y, runs=3)
        membership.play_canaries(ensemble, x, y, *membership.canaries(x, 3, count=5, seed=5), runs=3)
        poisoning.poisoning_scores(noisy, poisoning.ClipBKD().poison(x, y, k=2, seed=5, adjacency="replace"), trials=3)
        attacks.reconstruction_game(
            ensemble, dpsgd.Rows(x[:20], y[:20]), dpsgd.Rows(x[20:], y[20:]), attacks.GameRules(3), runs=3
        )
        shadows = attacks.shadow_models(ensemble, x[:5], y[:5], x[5:], y[5:])
        noisy_training = attacks.ReconstructorTraining(hidden=(4,), epochs=6, noise=0.1)
        attacks.reconstructor(shadows, x[5:], training=noisy_training, seed=5)
        run = ensemble.run(
            x[:20],
            y[:20],
            runs=2,
            per_run=dpsgd.PerRun(dpsgd.Rows(x[20:22, None], y[20:22, None])),
            observer=dpsgd.Observer(record=True),
        )
        attacks.gradient(run, y[20:22], descent=attacks.Descent(iterations=2, restarts=1), seed=5)
    assert {s.name for s in Stream if any(d.word == s for d in draws)} >= {
        "MEMBERSHIP_COINS", "CANARY_COINS", "GAME", "RECONSTRUCTOR_ORDER", "RECONSTRUCTOR_NOISE", "GRADIENT_STARTS",
        "INIT", "INIT_GLOROT", "INIT_NOISE", "POISONED_ROWS", "BATCH", "CLIP_NOISE",
    }  # fmt: skip
    assert overlaps(draws) == []


@pytest.mark.full
def test_seed_of_bounds():
    kappa = {"kappa": 0.1, "seed": 7}
    with recorded() as draws:
        for method in ("certified", "monte-carlo", "importance"):
            bounds.reconstruction(1.0, 0.5, 3, method=method, num_samples=2000, **kappa)
        bounds.reconstruction_of(mechanisms.FixedSize(1.0, 1, 2, 3), num_samples=2000, **kappa)
        information = bounds.SampledInformation(num_samples=2000, seed=7)
        bounds.fano_advantage(1.0, 1.0, 3, prior=[0.25] * 4, information=information)
        bounds.epsilon_lower_bound_from_scores(np.arange(40.0), np.arange(40.0) - 9, adjacency="add-remove",
                                               threshold=bounds.SplitThreshold(seed=7))  # fmt: skip
        bounds.epsilon_lower_bound_from_scores(np.arange(40.0), np.arange(40.0) - 9, adjacency="add-remove",
                                               threshold=bounds.SimultaneousThreshold(seed=7))  # fmt: skip
        bounds.epsilon_lower_bound_from_scores(np.arange(40.0), np.arange(40.0) - 9, adjacency="add-remove", delta=1e-5,
                                               threshold=bounds.SimultaneousThreshold(seed=7),
                                               hypothesis=bounds.Hypothesis(mechanisms.FullBatch(1.0, 1)))  # fmt: skip
        bounds.laplace.mechanism(np.zeros(3), scale=1.0, seed=7)
    assert {s.name for s in Stream if any(s <= d.word < s + s.steps for d in draws)} >= {
        "MIXTURE", "FIXED_BATCH", "IMPORTANCE_UPPER", "IMPORTANCE_LOWER", "FANO", "SCORE_SPLIT", "SCORE_TIES",
        "RANK_CUTS", "RANK_SCORES", "LAPLACE",
    }  # fmt: skip
    assert overlaps(draws) == []


def test_seed_of_a_composition():
    """Each part of a defence, each local step and each layer's masks, and the training that they defend."""
    parts = [
        defenses.LocalSteps(2, 0.1), defenses.Dropout(0.5), defenses.DPSGD(1.0, 1.0), defenses.GaussianNoise(1.0),
        defenses.GaussianNoise(1.0), defenses.Laplace(1.0), defenses.Laplace(1.0),
    ]  # fmt: skip
    model = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(3)))
    x, y = np.eye(5, dtype=np.float32), np.arange(5)
    with recorded() as draws:
        kernels.clip_and_noise(x, 1.0, 1.0, seed=2)
        whole = defenses.release(model, x, y, defense=defenses.Compose(*parts), seed=2)
    assert np.isfinite(whole.gradient.numpy()).all()
    # No number is drawn twice, by any part: a part that is there twice is two uses.
    numbers = [(d.seed, d.word, d.first) for d in draws]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("attack", ["zero-input", "membership", "one-run"])
def test_seed_of_a_claim(attack):
    config = {
        "data": {"name": "digits", "num_rows": 60},
        "mechanism": {"learning_rate": 0.5, "steps": 3, "noise_multiplier": 1.0},
        "audit": {"trials": 24, "k": [1], "attack": attack, **({"canaries": 20} if attack == "one-run" else {})},
    }
    with recorded() as draws:
        audit.claim(config)
    assert len(draws) > 3
    assert overlaps(draws) == []


@pytest.mark.slow
def test_seed_of_an_audit():
    small = {"runs": 32, "sweep": (), "num_rows": 60, "steps": 4, "label_trials": 2}
    with recorded() as draws:
        audit.run(audit.AuditConfig(**small))
        audit.run(audit.AuditConfig(**small, defense="local-steps:2 + dropout:0.5 + gaussian-noise:0.1 + laplace:0.1"))
        audit.selftest(audits=10)
    assert overlaps(draws) == []


DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data sets")
@pytest.mark.parametrize("name", experiments.names())
def test_seed_of_an_experiment(name, tmp_path):
    with recorded() as draws:
        experiments.run(name, scale="tiny", data=DATA, out=tmp_path)
    assert overlaps(draws) == []

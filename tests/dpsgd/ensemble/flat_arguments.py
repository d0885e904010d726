"""Ensembles and runs from flat keywords, for tests that change one of them at a time."""

from __future__ import annotations

from typing import Any

from leakcore import attacks, dpsgd


def ensemble(layers: Any, activation: str = "elu", **flat: Any) -> dpsgd.Ensemble:
    """An ensemble of perceptrons."""
    named = {"initialisation_scale": "scale", "initialisation_noise": "noise"}
    scale = {ours: flat.pop(name) for name, ours in named.items() if name in flat}
    how = flat.pop("initialisation", "per-run")
    more = {"dtype": flat.pop("dtype")} if "dtype" in flat else {}
    network = dpsgd.Network(
        layers, activation, initialisation=dpsgd.Initialisation(how, **scale) if scale else how, **more
    )  # fmt: skip
    return dpsgd.Ensemble(network, **_mechanism(flat))


def module_ensemble(module: Any, input_shape: Any, **flat: Any) -> dpsgd.Ensemble:
    """An ensemble of a torch module."""
    own = {name: flat.pop(name) for name in ("initialisation_noise", "dtype") if name in flat}
    return dpsgd.Ensemble(dpsgd.ModuleNetwork(module, input_shape, **own), **_mechanism(flat))


def _mechanism(flat: dict[str, Any]) -> dict[str, Any]:
    expected, size, rate = (flat.pop(name, None) for name in ("expected_batch_size", "batch_size", "sample_rate"))
    assert flat.pop("sampling", None) in (None, "poisson" if size is None else "shuffled")
    if size is not None:
        flat["sample_rate"] = dpsgd.ShuffledBatches(size, expected)
    elif rate is not None or expected is not None:
        flat["sample_rate"] = dpsgd.PoissonBatches(1.0 if rate is None else rate, expected)
    if "clip_slack" in flat:
        flat["fault"] = dpsgd.Fault(clip_slack=flat.pop("clip_slack"))
    return flat


def run(trained: dpsgd.Ensemble, features: Any, labels: Any, *, runs: int, **flat: Any) -> dpsgd.EnsembleRun:
    """Runs of an ensemble."""
    which = _which(runs, flat)
    pool = flat.pop("pool_features", None), flat.pop("pool_labels", None)

    def rows(name: str) -> dpsgd.Rows | None:
        x, y, index = (flat.pop(f"{name}_{what}", None) for what in ("features", "labels", "index"))
        if index is not None:
            return dpsgd.Rows(*pool, index)
        return None if x is None else dpsgd.Rows(x, y)

    own = {name: flat.pop(name) for name in ("initial", "noise", "batches") if name in flat}
    names = {"subtract_known": "subtract_known", "scorers": "scorers", "candidate_cosines": "cosines",
             "keep_steps": "keep_steps", "record": "record"}  # fmt: skip
    watched = {ours: flat.pop(name) for name, ours in names.items() if name in flat}
    how = ("device", "num_threads", "executor", "checkpoint", "progress")
    carried = {name: flat.pop(name) for name in how if name in flat}
    return trained.run(
        features,
        labels,
        runs=which,
        per_run=dpsgd.PerRun(rows("extra"), **own),
        observer=dpsgd.Observer(rows("candidate"), **watched),
        probes=rows("probe"),
        execution=dpsgd.Execution(**carried),
        **flat,
    )


def game(play: Any, ensemble: dpsgd.Ensemble, known: Any, pool: Any, *, runs: int = 1000, **flat: Any) -> Any:
    """`attacks.reconstruction_game` or `reconstruction_games`."""
    names = ("num_candidates", "prior", "subtract_known", "nearest_cosines")
    rules = attacks.GameRules(**{name: flat.pop(name) for name in names if name in flat})
    which = _which(runs, flat)
    how = ("device", "num_threads", "executor", "checkpoint", "progress")
    carried = {name: flat.pop(name) for name in how if name in flat}
    return play(ensemble, known, pool, rules, runs=which, execution=dpsgd.Execution(**carried), **flat)


def _which(runs: Any, flat: dict[str, Any]) -> Any:
    """The runs from `first_run` on; what is not an integer stands alone, for the function to refuse by name."""
    if "first_run" not in flat:
        return runs
    first = flat.pop("first_run")
    others = [value for value in (runs, first) if type(value) is not int]
    return others[0] if others else range(first, first + runs)

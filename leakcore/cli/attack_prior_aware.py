"""`leakcore attack prior-aware`: the reconstruction game, played on real data."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_HIDDEN, MOST_RUNS, MOST_STEPS, REAL, count, overflowed
from leakcore.cli.options import DATA_FOLDER, run_folder, seed_json_quiet
from leakcore.cli.output import as_json_text, bars, finish

if TYPE_CHECKING:
    from leakcore._base.results import Result
    from leakcore.attacks import ReconstructionGame
    from leakcore.datasets import Dataset


@click.command("prior-aware")
@click.option("--dataset", type=click.Choice(["digits", "mnist", "fashion-mnist"]), default="digits", show_default=True)
@DATA_FOLDER
@click.option("--epsilon", type=REAL, help="ε (add/remove) that the noise is calibrated to.  [default: 10]")
@click.option("--noise-multiplier", type=REAL, help="Noise multiplier σ, instead of --epsilon.")
@click.option("--delta", type=REAL, default=1e-5, show_default=True)
@click.option("--steps", type=count(1, MOST_STEPS), default=100, show_default=True)
@click.option("--sample-rate", type=REAL, default=1.0, show_default=True)
@click.option("--max-grad-norm", type=REAL, default=0.1, show_default=True)
@click.option("--learning-rate", type=REAL, default=10.0, show_default=True)
@click.option("--hidden", type=count(1, MOST_HIDDEN), default=10, show_default=True, help="Width of the hidden layer.")
@click.option(
    "--num-rows",
    type=click.IntRange(min=2),
    default=1000,
    show_default=True,
    help="Training rows, the target included.",
)
@click.option(
    "--num-candidates",
    type=click.IntRange(min=2),
    default=10,
    show_default=True,
    help="Number of equally likely candidates.",
)
@click.option("--runs", type=count(1, MOST_RUNS), default=1000, show_default=True)
@click.option("--method", type=click.Choice(["auto", "sum", "top", "likelihood"]), default="auto", show_default=True)
@click.option("--no-subtraction", is_flag=True, help="The weaker attacker, who cannot subtract known gradients.")
@click.option("--confidence", type=REAL, default=0.95, show_default=True)
@run_folder("prior-aware.json", "runs")
@seed_json_quiet("attack and bound")
def prior_aware(as_json: bool, out: Path | None, **options: Any) -> None:
    """Name the training record among a prior of candidates, from all released gradients.

    Example: leakcore attack prior-aware --epsilon 10 --runs 500
    """
    if options["epsilon"] is not None and options["noise_multiplier"] is not None:
        raise click.UsageError("give --epsilon or --noise-multiplier, not both")
    setting = types.SimpleNamespace(**options)  # the options by their names
    played = checked(
        lambda: _played(setting, out),
        pieces=None if out is None else out / "partial" / _RUN,
        names={"expected_batch_size": "--sample-rate × --num-rows"},
    )
    finish(played.to_dict(), as_json, lambda: _lines(played, setting), [] if out is None else [out / _REPORT])


class _Played(NamedTuple):
    """The game, the bound on it, and, of full batches, the optimum for orthogonal gradients."""

    game: ReconstructionGame
    bound: Result
    reference: Result | None

    def to_dict(self) -> dict[str, Any]:
        both = {"schema": "leakcore.prior-aware/1", "attack": self.game.to_dict(), "bound": self.bound.to_dict()}
        return both if self.reference is None else {**both, "orthogonal": self.reference.to_dict()}


def _lines(played: _Played, setting: types.SimpleNamespace) -> Iterator[str]:
    from leakcore.audit import guarantee, number, power, proved_epsilon

    game, bound, reference = played
    low, high = (number(end, 4, side) for end, side in zip(game.interval or (), ("lower", "upper"), strict=True))
    yield f"attack      {_shown(game)}  [{low}, {high}]  of {game.trials:,} runs ({guarantee(game)})"
    yield f"bound       {_shown(bound)}  no attack succeeds more often ({guarantee(bound)})"
    if reference is not None:
        yield (
            f"orthogonal  {_shown(reference)}  the optimum, were candidates' gradients orthogonal "
            f"({guarantee(reference)})"
        )
    yield f"guessing    {game.chance:.4f}"
    yield f"clipped     {100 * game.clipped_share:.1f}% of candidates' gradients"
    sigma = game.settings["noise_multiplier"]
    proved = proved_epsilon(sigma, setting.sample_rate, setting.steps, delta=setting.delta)
    epsilon = f"ε = {number(proved)} at δ = {power(setting.delta)} ({guarantee(proved)})"
    yield f"noise       σ = {number(sigma, 6, 'upper')}: {epsilon}"
    yield f"attacker    {game.assumptions.attacker}"


def _shown(success: Result) -> str:
    """A probability, rounded to the side on which it holds."""
    from leakcore.audit import fixed, number

    return fixed(success, 4) if not 0 < float(success.value) < 1e-3 else number(success)


_RUN = "prior-aware"
_REPORT = "prior-aware.json"
_PIECE = 256
"""Runs that a kill may cost: seconds."""


def _data(setting: types.SimpleNamespace) -> Dataset:
    """All rows; ValueError where they are too few for the game."""
    from leakcore import datasets

    if setting.dataset == "digits":
        whole = datasets.digits()
    else:
        load = datasets.mnist if setting.dataset == "mnist" else datasets.fashion_mnist
        whole = load("test", path=setting.data, download=False)
    rows = len(whole.labels)
    if setting.num_rows - 1 + setting.num_candidates > rows:
        raise ValueError(
            f"`num_rows` and `num_candidates` must add up to at most {rows + 1}, for {setting.dataset} has {rows:,} "
            f"rows and the game takes num_rows - 1 and num_candidates more, got {setting.num_rows} and "
            f"{setting.num_candidates}"
        )
    return whole


def _played(setting: types.SimpleNamespace, out: Path | None) -> _Played:
    from leakcore import accounting, attacks, bounds, dpsgd
    from leakcore._base import validate
    from leakcore._base.output_folder import require_ours, require_writable
    from leakcore._base.run_folder import PartialResults, identity
    from leakcore._base.writing import place_in, write_atomically

    if out is not None:
        require_writable(out, name="out")
        require_ours(out, _REPORT)
    validate.open_probability(delta=setting.delta)
    steps, sample_rate, noise = setting.steps, setting.sample_rate, setting.noise_multiplier
    if noise is None:
        epsilon = 10.0 if setting.epsilon is None else setting.epsilon
        needed = accounting.noise_multiplier(epsilon=epsilon, delta=setting.delta, sample_rate=sample_rate, steps=steps)
        noise = float(needed.value)
    known, pool = _data(setting).split(setting.num_rows - 1, seed=setting.seed)
    ensemble = dpsgd.Ensemble(
        (known.features.shape[1], setting.hidden, known.num_classes),
        noise_multiplier=noise,
        max_grad_norm=setting.max_grad_norm,
        learning_rate=setting.learning_rate,
        steps=steps,
        sample_rate=dpsgd.PoissonBatches(sample_rate, expected_batch_size=sample_rate * setting.num_rows),
        seed=setting.seed,
    )
    show = bars()
    total = validate.integer(1, None, runs=setting.runs)
    names = ("dataset", "num_rows", "num_candidates", "runs", "method", "confidence")
    chosen = {name: getattr(setting, name) for name in names}
    settings = {**ensemble.settings(), **chosen, "subtract_known": not setting.no_subtraction}

    def play(first: int, count: int) -> attacks.ReconstructionGame:
        try:
            return attacks.reconstruction_game(
                ensemble,
                known,
                pool,
                attacks.GameRules(setting.num_candidates, subtract_known=not setting.no_subtraction),
                method=setting.method,
                runs=range(first, first + count),
                confidence=setting.confidence,
                execution=dpsgd.Execution(
                    progress=None if show is None else lambda done, _: show("prior-aware attack", first + done, total)
                ),
            )
        except FloatingPointError as error:
            raise overflowed(error, "take a smaller --learning-rate, or a larger --num-rows") from error

    game: attacks.ReconstructionGame | None = None
    size = total if out is None else _PIECE
    bound_to = identity("attack prior-aware", settings, setting.seed)
    with PartialResults(out, _RUN, bound_to) as pieces:
        for first in range(0, total, size):
            piece = pieces.get_or_run(
                f"game-{first}", functools.partial(play, first, min(size, total - first)), attacks.ReconstructionGame
            )
            game = piece if game is None else game.merge(piece)
        bound = bounds.reconstruction(noise, sample_rate, steps, kappa=1 / setting.num_candidates)
        reference = bounds.orthogonal_success(noise, steps, setting.num_candidates) if sample_rate == 1 else None
        assert game is not None
        played = _Played(game, bound, reference)
        if out is not None:
            write_atomically(place_in(out, _REPORT), as_json_text(played.to_dict()) + "\n")
            pieces.remove()
    return played

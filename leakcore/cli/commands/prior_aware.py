"""`leakcore attack prior-aware`: the reconstruction game, played on real data."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_HIDDEN, MOST_RUNS, MOST_STEPS, REAL, count, overflowed
from leakcore.cli.options import DATA_FOLDER, run_folder, seed_json_quiet
from leakcore.cli.progress import bars

if TYPE_CHECKING:
    from leakcore._base.results import Result


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
    "--num-candidates", type=click.IntRange(min=2), default=10, show_default=True,
    help="Number of equally likely candidates.",
)  # fmt: skip
@click.option("--runs", type=count(1, MOST_RUNS), default=1000, show_default=True)
@click.option("--method", type=click.Choice(["auto", "sum", "top", "likelihood"]), default="auto", show_default=True)
@click.option("--no-subtraction", is_flag=True, help="The weaker attacker, who cannot subtract known gradients.")
@click.option("--confidence", type=REAL, default=0.95, show_default=True)
@run_folder("prior-aware.json", "runs")
@seed_json_quiet("attack and bound")
def prior_aware(
    dataset: str,
    data: Path | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    steps: int,
    sample_rate: float,
    num_rows: int,
    num_candidates: int,
    as_json: bool,
    quiet: bool,
    out: Path | None,
    **rest: Any,
) -> None:
    """Name the training record among a prior of candidates, from all released gradients.

    Example: leakcore attack prior-aware --epsilon 10 --runs 500
    """
    if epsilon is not None and noise_multiplier is not None:
        raise click.UsageError("give --epsilon or --noise-multiplier, not both")
    game, bound, reference = checked(
        lambda: _played(
            dataset, data, 10.0 if epsilon is None else epsilon, noise_multiplier, delta, steps, sample_rate, num_rows,
            num_candidates, quiet, out, **rest,
        ),
        pieces=None if out is None else out / "partial" / _RUN,
        names={"expected_batch_size": "--sample-rate × --num-rows"},
    )  # fmt: skip
    if as_json:
        click.echo(json.dumps(_as_dict(game, bound, reference), indent=2, ensure_ascii=False))
        return
    from leakcore.audit import guarantee, number

    low, high = (number(end, 4, side) for end, side in zip(game.interval, ("lower", "upper"), strict=True))
    click.echo(f"attack      {_shown(game)}  [{low}, {high}]  of {game.trials:,} runs ({guarantee(game)})")
    click.echo(f"bound       {_shown(bound)}  no attack succeeds more often ({guarantee(bound)})")
    if reference is not None:
        click.echo(
            f"orthogonal  {_shown(reference)}  the optimum, were candidates' gradients orthogonal "
            f"({guarantee(reference)})"
        )
    click.echo(f"guessing    {game.chance:.4f}")
    click.echo(f"clipped     {100 * game.clipped_share:.1f}% of candidates' gradients")
    sigma = game.settings["noise_multiplier"]
    click.echo(f"noise       σ = {number(sigma, 6, 'upper')}: {_epsilon(sigma, sample_rate, steps, delta)}")
    click.echo(f"attacker    {game.assumptions.attacker}")
    if out is not None:
        click.echo(f"\n{out / _REPORT}")


def _shown(success: Result) -> str:
    """A probability, rounded to the side on which it holds."""
    from leakcore.audit import fixed, number

    return fixed(success, 4) if not 0 < float(success.value) < 1e-3 else number(success)


def _epsilon(sigma: float, sample_rate: float, steps: int, delta: float) -> str:
    """What the accountant says of the noise, as text."""
    from leakcore.audit import guarantee, number, power, proved_epsilon

    found = proved_epsilon(sigma, sample_rate, steps, delta=delta)
    return f"ε = {number(found)} at δ = {power(delta)} ({guarantee(found)})"


_RUN = "prior-aware"
_REPORT = "prior-aware.json"
_PIECE = 256
"""Runs that a kill may cost: seconds."""


def _as_dict(game: Any, bound: Any, reference: Any) -> dict[str, Any]:
    both = {"schema": "leakcore.prior-aware/1", "attack": game.to_dict(), "bound": bound.to_dict()}
    return both if reference is None else {**both, "orthogonal": reference.to_dict()}


def _played(
    dataset: str, data: Path | None, epsilon: float, noise: float | None, delta: float, steps: int, sample_rate: float,
    num_rows: int, num_candidates: int, quiet: bool, out: Path | None, *, max_grad_norm: float, learning_rate: float,
    hidden: int, runs: int, method: str, no_subtraction: bool, confidence: float, seed: int,
) -> tuple[Any, Any, Any]:  # fmt: skip
    from leakcore import accounting, attacks, bounds, datasets, dpsgd, kernels
    from leakcore._base import validate as check
    from leakcore._base.files.writing import write_atomically
    from leakcore._base.run_folder.identity import identity
    from leakcore._base.run_folder.output_folder import require_ours, require_writable
    from leakcore._base.run_folder.partial_results import PartialResults

    if out is not None:
        require_writable(out, name="out")
        require_ours(out, _REPORT)
    check.open_probability(delta=delta)
    if noise is None:
        found = accounting.noise_multiplier(epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps)
        noise = float(found.value)
    if dataset == "digits":
        whole = datasets.digits()
    else:
        load = datasets.mnist if dataset == "mnist" else datasets.fashion_mnist
        whole = load("test", path=data, download=False)
    rows = len(whole.labels)
    if num_rows - 1 + num_candidates > rows:
        raise ValueError(
            f"num_rows={num_rows}, num_candidates={num_candidates}: {dataset} has {rows:,} rows; the game takes "
            "num_rows - 1 and num_candidates more"
        )
    known, pool = whole.split(num_rows - 1, seed=seed)
    ensemble = dpsgd.Ensemble(
        (known.features.shape[1], hidden, known.num_classes),
        noise_multiplier=noise,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        steps=steps,
        sample_rate=dpsgd.PoissonBatches(sample_rate, expected_batch_size=sample_rate * num_rows),
        seed=seed,
    )
    shown = bars(quiet)
    total = check.integer(1, None, runs=runs)
    settings = {
        **ensemble.settings(), "dataset": dataset, "num_rows": num_rows, "num_candidates": num_candidates, "runs": runs,
        "method": method, "subtract_known": not no_subtraction, "confidence": confidence,
    }  # fmt: skip

    def play(first: int, count: int) -> attacks.ReconstructionGame:
        try:
            return attacks.reconstruction_game(
                ensemble,
                known,
                pool,
                attacks.GameRules(num_candidates, subtract_known=not no_subtraction),
                method=method,
                runs=range(first, first + count),
                confidence=confidence,
                execution=dpsgd.Execution(
                    progress=None if shown is None else lambda done, _: shown("prior-aware attack", first + done, total)
                ),
            )
        except FloatingPointError as error:
            raise overflowed(error, "take a smaller --learning-rate, or a larger --num-rows") from error

    game: attacks.ReconstructionGame | None = None
    size = total if out is None else _PIECE
    bound_to = identity("attack prior-aware", settings, seed, kernels.arithmetic())
    with PartialResults(out, _RUN, bound_to) as pieces:
        for first in range(0, total, size):
            piece = pieces.get_or_run(
                f"game-{first}", functools.partial(play, first, min(size, total - first)), attacks.ReconstructionGame
            )
            game = piece if game is None else game.merge(piece)
        bound = bounds.reconstruction(noise, sample_rate, steps, kappa=1 / num_candidates)
        reference = bounds.orthogonal_success(noise, steps, num_candidates) if sample_rate == 1 else None
        if out is not None:
            text = json.dumps(_as_dict(game, bound, reference), indent=2, ensure_ascii=False)
            write_atomically(out / _REPORT, text + "\n")
            pieces.remove()
    return game, bound, reference

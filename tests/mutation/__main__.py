"""Mutation testing of a sample: small changes of the formulas; a test should notice each.

    make mutants                                   a sample of every module below
    make mutants ARGS="--module numerics/limits.py --sample 50"

cosmic-ray makes the mutants and runs the tests, in a copy of the tree (build/mutants). A survivor is a change that no
test noticed: it is printed as a diff. Some are equivalent to the original, such as a tolerance of another size.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

MODULES = {
    "accounting/delta.py": "tests/accounting/test_delta.py",
    "accounting/epsilon.py": "tests/accounting/test_epsilon.py",
    "accounting/noise_multiplier.py": "tests/accounting/test_epsilon.py",
    "attacks/labels/known_probabilities.py": "tests/attacks/labels/test_known_probabilities.py",
    "attacks/labels/result.py": "tests/attacks/labels/test_last_layer.py tests/attacks/labels/test_observation.py "
    "tests/attacks/labels/test_consistency.py",
    "attacks/labels/hidden_layers.py": "tests/attacks/labels/test_hidden_layers.py",
    "bounds/audited_epsilon/counts.py": "tests/bounds/audited_epsilon/test_counts.py",
    "bounds/audited_epsilon/one_run.py": "tests/bounds/audited_epsilon/test_one_run.py",
    "bounds/reconstruction/kappa.py": "tests/bounds/reconstruction/test_kappa.py",
    "bounds/labels.py": "tests/bounds/test_labels.py",
    "bounds/laplace/mechanism.py": "tests/bounds/laplace/test_laplace.py",
    "dpsgd/ensemble/sampling.py": "tests/dpsgd/ensemble/test_sampling.py",
    "dpsgd/fused/fused_optimizer.py": "tests/dpsgd/fused/test_fused_optimizer.py "
    "tests/dpsgd/fused/test_row_gradients.py",
    "kernels/clip.py": "tests/kernels/test_clip_and_noise.py tests/kernels/test_clip_scores.py",
    "kernels/solve_labels.py": "tests/kernels/test_solve_labels.py",
    "mechanisms/fixed_size.py": "tests/mechanisms/test_mechanisms.py tests/accounting/test_epsilon.py",
    "mechanisms/poisson.py": "tests/mechanisms/test_mechanisms.py tests/accounting/test_epsilon.py",
    "numerics/limits.py": "tests/numerics/test_limits.py",
    "numerics/gaussian_pair.py": "tests/numerics/test_gaussian_pair.py",
    "numerics/search.py": "tests/numerics/test_search.py",
}
"""Under leakcore/, and the quick tests that should notice."""
NO_BEHAVIOUR = ("core/ReplaceBinaryOperator_BitOr", "core/RemoveDecorator", "core/AddNot")
"""Operators left out: `|` stands in annotations, which nothing evaluates; a negated condition is noticed at once."""
_CONFIG = """[cosmic-ray]
module-path = "leakcore/{module}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider -m 'not slow' {tests}"

[cosmic-ray.distributor]
name = "local"
"""


def mutate(module: str, sample: int, seed: int, timeout: float) -> tuple[int, list[str]]:
    """(mutants run, diffs of those that survived) of one module."""
    build = Path("mutants")
    build.mkdir(exist_ok=True)
    stem = module.replace("/", "-").removesuffix(".py")
    config, session = build / f"{stem}.toml", build / f"{stem}.sqlite"
    config.write_text(
        _CONFIG.format(module=module, timeout=timeout, python=sys.executable, tests=MODULES[module]), encoding="utf-8"
    )
    session.unlink(missing_ok=True)
    cosmic_ray = [sys.executable, "-m", "cosmic_ray.cli"]
    subprocess.run([*cosmic_ray, "init", str(config), str(session)], check=True)
    with use_db(session, WorkDB.Mode.open) as database:
        items = sorted(database.pending_work_items, key=lambda item: item.job_id)
        behaviour = [i for i in items if not i.mutations[0].operator_name.startswith(NO_BEHAVIOUR)]
        behaviour.sort(key=lambda i: (i.mutations[0].start_pos, i.mutations[0].operator_name))
        chosen = {i.job_id for i in random.Random(seed).sample(behaviour, min(sample, len(behaviour)))}
        for item in items:
            if item.job_id not in chosen:
                database.set_result(item.job_id, WorkResult(WorkerOutcome.SKIPPED))
    subprocess.run([*cosmic_ray, "exec", str(config), str(session)], check=True)
    with use_db(session, WorkDB.Mode.open) as database:
        results = [result for job, result in database.results if job in chosen]
    return len(results), [r.diff or "" for r in results if r.test_outcome == TestOutcome.SURVIVED]


def main() -> int:
    """Print, per module, how many mutants survived, and their diffs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", choices=sorted(MODULES), action="append", help="default: all")
    parser.add_argument("--sample", type=int, default=12, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant")
    options = parser.parse_args()
    total = survived = 0
    for module in options.module or sorted(MODULES):
        count, diffs = mutate(module, options.sample, options.seed, options.timeout)
        total, survived = total + count, survived + len(diffs)
        print(f"{module}: {len(diffs)} of {count} mutants survived", flush=True)
        for diff in diffs:
            print(diff, flush=True)
    print(f"{survived} of {total} mutants survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())

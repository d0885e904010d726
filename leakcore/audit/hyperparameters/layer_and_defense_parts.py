"""What other studies add to a report, in words: where the leak sits, in any model; an attack under a defence."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base.results import jsonable
from leakcore.audit.hyperparameters.layers import ATTRIBUTE, LayerStudy
from leakcore.audit.shared.elements import Figure, Finding, Part, Section, Table, heads, row_of, table_of
from leakcore.audit.shared.format import guarantee, interval, number, percent
from leakcore.audit.shared.plots import heat_map_svg

if TYPE_CHECKING:
    from leakcore.audit.hyperparameters.defense import DefenseStudy
    from leakcore.leakage import LeakageByLayer, VInformation


def where_it_sits(measures: LeakageByLayer) -> Part:
    """The result of `leakage.by_layer` as a part of a report.

    The part has a finding with its consequence, a heat map and a table, layer by layer; each latent measure stands next
    to its permutation null. All of it is an estimate on plain gradients of single rows, without clipping or noise. In
    the report's JSON it stands under "layers".

    Args:
        measures: what `leakage.by_layer` returned.

    Returns:
        A part, for `report.with_parts(...)`.

    Raises:
        TypeError: for anything else.

    Example:
        >>> from leakcore import audit
        >>> part = audit.where_it_sits(leakage.by_layer(model, inputs, targets))  # doctest: +SKIP
        >>> report.with_parts(part).to_html("report.html")  # doctest: +SKIP
        >>> audit.where_it_sits("the first layer")
        Traceback (most recent call last):
        TypeError: `measures` must be what leakage.by_layer returns, got str
    """
    from leakcore.leakage import LeakageByLayer

    if not isinstance(measures, LeakageByLayer):
        raise TypeError(f"`measures` must be what leakage.by_layer returns, got {type(measures).__name__}")
    figure = Figure(
        svg=functools.partial(heat_map_svg, measures),
        alt="Heat map, layers by measures; the table below holds the same numbers.",
        caption="Colour is relative to the largest value of its column: red says where a measure is largest, not that "
        "it is large. A star says that no permutation of the labels gave as much.",
    )
    return Part(
        key="layers",
        findings=(_finding(measures),),
        sections=(Section("Where the leak sits, layer by layer", (_table(measures),), figure),),
        content={"measures": measures.to_dict()},
    )


def _finding(measures: LeakageByLayer) -> Finding:
    per = measures.sensitivity.per_parameter()
    most = int(np.argmax(per))
    closest = (
        f"for its size the gradient of layer {measures.layers[most]} follows the input most closely "
        f"({number(per[most], 3)} per root of the number of parameters)"
    )
    said = [closest]
    if measures.original is not None:
        above = np.nan_to_num(measures.original.above_null, nan=-np.inf)
        best = int(np.argmax(above))
        if np.isfinite(above[best]):
            said.append(
                f"inverting {' and '.join(measures.original.pairs[best])} together recovers most of the input itself "
                f"(score {measures.original.raw[best]:.1f}, {2 * np.pi**2:.1f} is perfect; against other inputs "
                f"{measures.original.null[best]:.1f})"
            )
    named = []
    for name, latent in measures.latent.items():
        layers = beyond(latent)
        if layers:
            named.append(name)
            said.append(f"about {name} layer {measures.layers[layers[0]]} shows most, {value_text(latent, layers[0])}")
        else:
            said.append(f"about {name} no layer shows more than permuted labels do")
    if named:
        sure = f"{100 * (next(iter(measures.latent.values())).confidence or 0):g}%"
        shown = ", ".join(named)
        verdict = f"At {sure} each, single gradients of this model show what the task never asks for: {shown}."
    elif measures.latent:
        verdict = "This family of attackers reads none of the attributes in single gradients of this model."
    else:
        verdict = "No attribute was looked for."
    return Finding(
        f"Where the leak sits: {'; '.join(said)} (estimates, no guarantee).",
        verdict=verdict,
        assumes="the attacker sees the plain gradient of one row: clipping, noise and other rows of a batch hide some "
        "of it, and a better attacker may read more.",
    )


def _table(measures: LeakageByLayer) -> Table:
    original = "" if measures.original is None else " Original: score of inverting this layer with the next."
    latent = ""
    if measures.latent:
        first = next(iter(measures.latent.values()))
        latent = (
            f" Latent: nats that {first.family} reads held out, {first.set_sizes[0]} rows without and "
            f"{first.set_sizes[1]} with the attribute; beneath, the interval of this held-out gain and, in brackets, "
            "the largest of the permutations of the labels: only what lies above that counts."
        )
    caption = (
        f"Plain gradients of single rows. Sensitivity: mean Frobenius norm over {measures.samples[0]} inputs."
        f"{original}{latent} Estimates; no bound on any attack."
    )
    columns = {f"latent:\n{name}": latent for name, latent in measures.latent.items()}
    return _table_of_layers(measures, [row["layer"] for row in measures.rows()], columns, caption)


def _table_of_layers(
    measures: LeakageByLayer, names: list[str], latent: Mapping[str, VInformation], caption: str
) -> Table:
    """A row per layer. latent: measures by the title of their column."""
    original = measures.original is not None
    columns = heads(
        *("layer", "parameters", "sensitivity\n‖∂g/∂x‖ [estimate]", "per root of\nparameters [estimate]"),
        *(["original,\nabove null [estimate]"] if original else []),
        *(f"{title} [estimate]" for title in latent),
    )
    rows = [
        row_of(
            name,
            f"{layer['parameters']:,}",
            number(layer["sensitivity"]),
            number(layer["per_parameter"], 3),
            *(["—" if layer["original"] is None else nats(layer["original"])] if original else []),
            *((nats(at(v.value, i)), limits(v, i)) for v in latent.values()),
        )
        for i, (name, layer) in enumerate(zip(names, measures.rows(), strict=True))
    ]
    return Table("Where the leak sits", columns, tuple(rows), caption)


def at(values: Any, layer: int) -> float:
    """The value of a layer, from an array by layer or from the only one."""
    return float(np.atleast_1d(values)[layer])


def beyond(latent: VInformation) -> list[int]:
    """Layers whose whole held-out interval lies above 0 and every permutation, most above its null first."""
    null = _null(latent)
    chance = np.maximum(null.max(axis=0, initial=0.0), 0.0)
    above = np.flatnonzero(np.atleast_1d(latent.held_out_interval[0]) > chance)
    order = np.argsort(-np.nan_to_num(np.atleast_1d(latent.above_null))[above], kind="stable")
    return [int(i) for i in above[order]]


def nats(value: float) -> str:
    """Three decimals; a held-out value below 0 says that the family does worse than the prior."""
    return f"{value:.3f}".replace("-", "−") if abs(value) >= 5e-4 else "0.000"


def limits(latent: VInformation, layer: int) -> str:
    """The held-out interval, and the largest value of permuted labels."""
    low, high, null = _limits(latent, layer)
    return f"{low} to {high} (≤ {null})"


def value_text(latent: VInformation, layer: int) -> str:
    """The value, its interval and its null in words."""
    low, high, null = _limits(latent, layer)
    return (
        f"{nats(at(latent.value, layer))} of at most {latent.largest:.3f} nats ({low} to {high}, permuted labels at "
        f"most {null})"
    )


def _limits(latent: VInformation, layer: int) -> tuple[str, str, str]:
    low, high = (nats(at(limit, layer)) for limit in latent.held_out_interval)
    null = _null(latent)
    return low, high, nats(float(null[:, layer].max())) if len(null) else "—"


def _null(latent: VInformation) -> np.ndarray:
    """(permutations, layers)."""
    return latent.null.reshape(-1, np.atleast_1d(latent.value).size)


def layers_table(study: LayerStudy) -> Table:
    """A row per layer."""
    latent = study.measures.latent[ATTRIBUTE]
    caption = (
        f"Gradients of single rows of one model trained as claimed (σ = {number(study.noise_multiplier, 4)}). "
        f"Sensitivity: mean Frobenius norm over {study.measures.samples[0]} inputs. Attribute: texture above "
        f"the median, {latent.set_sizes[0]} rows with and {latent.set_sizes[1]} without it, matched by digit; nats "
        f"that logistic regression on absolute values reads held out, at most {latent.largest:.3f}, "
        f"beneath it the {100 * (latent.confidence or 0):g}% interval of this gain and, in brackets, "
        f"the largest of {len(latent.null)} permutations of the labels: only what lies above that counts, "
        "for larger layers read more by chance. The last column: the same gradients clipped to C with the noise "
        "of one step, all other rows known. Estimates; no bound on any attack."
    )
    names = [study.name(i) for i in range(len(study.sizes))]
    columns = {"attribute, nats\nplain gradient": latent, "attribute, nats\none noisy step": study.released}
    return _table_of_layers(study.measures, names, columns, caption)


def layers_finding(study: LayerStudy) -> Finding:
    """The result, its consequence, and its conditions."""
    latent = study.measures.latent[ATTRIBUTE]
    per = study.measures.sensitivity.per_parameter()
    most = int(np.argmax(per))
    before, after = beyond(latent), beyond(study.released)
    summary = f"{study.name(before[0])} shows most, {value_text(latent, before[0])}" if before else "no layer shows any"
    left = f"{study.name(after[0])} still shows {value_text(study.released, after[0])}" if after else "none does"
    sure = f"{100 * (latent.confidence or 0):g}%"
    if after:
        verdict = f"At {sure}: what the task never asks for is in single steps of this run; more noise hides more."
    elif before:
        verdict = (
            f"At {sure} the plain gradient shows what the task never asks for; in one step's release this family "
            "of attackers does not read it."
        )
    else:
        verdict = "Nothing to conclude on the order of layers: this family of attackers reads the attribute in none."
    return Finding(
        f"Where the leak sits: for its size the gradient of {study.name(most)} follows the input most closely "
        f"({number(per[most], 3)} per root of the number of parameters). The task never asks whether a digit has "
        f"more texture than the median: about that {summary}; after clipping and one step's noise {left} "
        f"(by whole intervals, {100 * (latent.confidence or 0):g}%, above every permutation of the labels; "
        "estimates, no guarantee).",
        verdict=verdict,
        assumes="the attacker reads as logistic regression on absolute values does, and sees one step; a better "
        "one, or one with all steps, may read more. The bounds above hold against them, this does not.",
    )


def layers_part(study: LayerStudy) -> Part:
    """What the report shows of the audited model's layers."""
    return Part(
        key="layers",
        findings=(layers_finding(study),),
        sections=(Section("Where the leak sits, layer by layer", (layers_table(study),)),),
        content=study.content(),
    )


def defense_part(study: DefenseStudy) -> Part:
    """What the report shows of an attack without a defence and with it."""
    config, runs, plain, under = study.config, study.runs, study.plain, study.defended
    spelling = str(config.defense)
    tighter = float(under.bound.value) < float(plain.bound.value)
    table = table_of(
        "The same attack with and without the defence",
        (("none", plain), (spelling, under)),
        {
            "defence": lambda side: side[0],
            "target named [estimate]": lambda side: (percent(side[1].attack), interval(side[1].attack)),
            "no attacker\nabove [upper]": lambda side: percent(side[1].bound),
            "ε of the run [upper]": lambda side: number(side[1].epsilon),
            "accuracy of\nthe models [estimate]": lambda side: percent(side[1].accuracy),
        },
        f"The claimed noise σ = {number(study.noise_multiplier, 4)}; {runs} trainings on either side with the same "
        f"seeds, {100 * config.confidence:g}% intervals, add/remove adjacency. The attacker compares what was released "
        "with what the defence, without its noise, would have released for each candidate. Accuracy on rows held out.",
        highlight=lambda side: side[1] is under,
    )
    says = (
        f"with the noise it adds the release is DP-SGD at σ = {number(study.released_noise, 4)}, and both are smaller"
        if tighter
        else "it is credited with no more than that, however much it hampers this attack"
    )
    finding = Finding(
        f"Under the defence {spelling}: the attack named the target in {percent(under.attack)} of "
        f"{runs} trainings ({interval(under.attack)}; {guarantee(under.attack)}), without the defence in "
        f"{percent(plain.attack)} ({interval(plain.attack)}) of the same. The models' accuracy is "
        f"{percent(under.accuracy)}, without {percent(plain.accuracy)}. Bound and ε hold under it: {study.why}; "
        f"{says}.",
        verdict="This is the measured effect on one attacker; the column “no attacker above” bounds every attacker.",
        assumes="the attacker knows the defence and its settings, not its random draws.",
    )
    apart = (
        f"The defence ({config.defense}) is in the section “Under a defence” only: accountant, bounds, attacks, labels "
        "and layers elsewhere are of DP-SGD's own release. Its scales refer to the mean gradient that the optimizer "
        "steps by."
    )
    return Part(
        key="defense",
        findings=(finding,),
        sections=(Section("Under a defence", (table,)),),
        assumptions=(apart,),
        content={
            "defense": config.defense,
            "runs": runs,
            "without": jsonable(plain),
            "with": jsonable(under),
            "bounds_hold_because": study.why,
        },
    )

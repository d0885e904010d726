"""How long the quick scale takes, each on two cores of an AMD EPYC that had other work as well."""

_SECONDS = {
    "fig1": 255,
    "fig2": 235,
    "fig3": 92,
    "fig4": 272,
    "fig5": 209,
    "fig6": 75,
    "table2": 2,
    "fig7": 103,
    "fig8": 75,
    "fig9": 129,
    "fig10": 105,
    "fig11": 2,
    "fig12": 179,
    "fig13": 139,
    "fig14": 105,
    "fig15": 17,
    "gap": 241,
    "sweep": 111,
    "spread": 78,
    "labels-fig1": 32,
    "labels-fig2": 32,
    "labels-fig3": 94,
    "labels-fig4": 89,
    "labels-fig5": 78,
    "leakage-fig3": 52,
    "leakage-fig4": 28,
    "leakage-fig5": 123,
    "leakage-fig6": 32,
    "leakage-fig7": 66,
    "leakage-fig8": 31,
    "leakage-fig9": 23,
    "leakage-fig10": 70,
    "leakage-fig11": 66,
    "auditing-fig2": 1174,
    "auditing-table2": 182,
    "lecture-laplace": 5,
    "lecture-table1": 42,
    "lecture-defenses": 61,
    "mechanisms-trainings": 50,
    "mechanisms-shuffling": 29,
}


def at_quick_scale(name: str) -> str:
    """ "about 75 s" or "about 2.5 min"; empty where it was not measured."""
    seconds = _SECONDS.get(name.removeprefix("reconstruction-"))
    return "" if seconds is None else _said(seconds)


def of_all() -> str:
    """Of `reproduce all`."""
    return _said(sum(_SECONDS.values()))


def _said(seconds: int) -> str:
    if seconds < 100:
        return f"about {seconds} s"
    return f"about {seconds / 60:.1f} min" if seconds < 1000 else f"about {seconds / 60:.0f} min"

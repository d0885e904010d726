"""Roughly how long the quick scale takes, on two cores of 2024 that had other work as well."""

_SECONDS = {
    "fig1": 170,
    "fig2": 95,
    "fig3": 150,
    "fig4": 165,
    "fig5": 155,
    "fig6": 45,
    "table2": 10,
    "fig7": 130,
    "fig8": 110,
    "fig9": 140,
    "fig10": 90,
    "fig11": 10,
    "fig12": 120,
    "fig13": 130,
    "fig14": 75,
    "fig15": 45,
    "labels-fig1": 100,
    "labels-fig2": 100,
    "labels-fig3": 85,
    "labels-fig4": 85,
    "labels-fig5": 85,
    "auditing-fig2": 240,
    "auditing-table2": 65,
    "leakage-fig3": 85,
    "leakage-fig4": 125,
    "leakage-fig5": 240,
    "leakage-fig6": 90,
    "leakage-fig7": 100,
    "leakage-fig8": 30,
    "leakage-fig9": 145,
    "leakage-fig10": 110,
    "leakage-fig11": 120,
    "lecture-laplace": 20,
    "lecture-table1": 55,
    "lecture-defenses": 80,
    "mechanisms-trainings": 60,
    "mechanisms-shuffling": 40,
}


def at_quick_scale(name: str) -> str:
    """ "about 75 s" or "about 2.5 min"; empty where it was not measured."""
    seconds = _SECONDS.get(name.removeprefix("reconstruction-"))
    if seconds is None:
        return ""
    return f"about {seconds} s" if seconds < 100 else f"about {seconds / 60:.1f} min"

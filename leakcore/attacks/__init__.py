"""What an attacker can do: each attack a pure function, or a game that plays one many times and counts."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.attacks import labels as labels
    from leakcore.attacks._game_result import ReconstructionGame as ReconstructionGame
    from leakcore.attacks._prior_aware import PriorAware as PriorAware
    from leakcore.attacks._prior_aware import prior_aware as prior_aware
    from leakcore.attacks._reconstruction_game import reconstruction_game as reconstruction_game
    from leakcore.attacks._reconstruction_game import reconstruction_games as reconstruction_games

_NAMES = {
    "labels": ".labels",
    "PriorAware": "._prior_aware",
    "prior_aware": "._prior_aware",
    "ReconstructionGame": "._game_result",
    "reconstruction_game": "._reconstruction_game",
    "reconstruction_games": "._reconstruction_game",
}
__getattr__, __dir__, __all__ = _attach(__name__, _NAMES)

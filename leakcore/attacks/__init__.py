"""What an attacker can do: each attack a pure function, or a game that plays one many times and counts."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.attacks import attributes as attributes
    from leakcore.attacks import inversion as inversion
    from leakcore.attacks import labels as labels
    from leakcore.attacks import membership as membership
    from leakcore.attacks import poisoning as poisoning
    from leakcore.attacks import tensor as tensor
    from leakcore.attacks._game_result import ReconstructionGame as ReconstructionGame
    from leakcore.attacks._gradient import GradientReconstruction as GradientReconstruction
    from leakcore.attacks._gradient import gradient as gradient
    from leakcore.attacks._gradient import gradient_loss as gradient_loss
    from leakcore.attacks._prior_aware import PriorAware as PriorAware
    from leakcore.attacks._prior_aware import prior_aware as prior_aware
    from leakcore.attacks._reconstruction_game import reconstruction_game as reconstruction_game
    from leakcore.attacks._reconstruction_game import reconstruction_games as reconstruction_games
    from leakcore.attacks._reconstructor import Reconstructor as Reconstructor
    from leakcore.attacks._reconstructor import reconstructor as reconstructor
    from leakcore.attacks._reconstructor import shadow_models as shadow_models
    from leakcore.attacks._similarity import UNIFORM_MSE as UNIFORM_MSE
    from leakcore.attacks._similarity import SuccessRate as SuccessRate
    from leakcore.attacks._similarity import mean_squared_error as mean_squared_error
    from leakcore.attacks._similarity import nearest_neighbour_mse as nearest_neighbour_mse
    from leakcore.attacks._similarity import nearest_prior as nearest_prior
    from leakcore.attacks._similarity import pixel_success as pixel_success
    from leakcore.attacks._similarity import pixels_within as pixels_within

_NAMES = {
    "attributes": ".attributes",
    "inversion": ".inversion",
    "labels": ".labels",
    "membership": ".membership",
    "poisoning": ".poisoning",
    "tensor": ".tensor",
    "GradientReconstruction": "._gradient",
    "gradient": "._gradient",
    "gradient_loss": "._gradient",
    "PriorAware": "._prior_aware",
    "prior_aware": "._prior_aware",
    "ReconstructionGame": "._game_result",
    "reconstruction_game": "._reconstruction_game",
    "reconstruction_games": "._reconstruction_game",
    "Reconstructor": "._reconstructor",
    "reconstructor": "._reconstructor",
    "shadow_models": "._reconstructor",
    "UNIFORM_MSE": "._similarity",
    "SuccessRate": "._similarity",
    "mean_squared_error": "._similarity",
    "nearest_neighbour_mse": "._similarity",
    "nearest_prior": "._similarity",
    "pixel_success": "._similarity",
    "pixels_within": "._similarity",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)

from .scores import CandidateScores as CandidateScores
from .scores import scores as scores

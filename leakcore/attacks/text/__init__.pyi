from .sequences import SequenceRecovery as SequenceRecovery
from .sequences import sequences as sequences
from .tokens import TokenCounts as TokenCounts
from .tokens import TokenSet as TokenSet
from .tokens import next_tokens as next_tokens
from .tokens import tokens as tokens

"""The main job: audit a DP-SGD run and report what was bounded, attacked and proved."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore._progress import progress_bars as progress_bars
    from leakcore.audit._claim_config import ClaimConfig as ClaimConfig
    from leakcore.audit._claim_report import ClaimReport as ClaimReport
    from leakcore.audit._claim_run import claim as claim
    from leakcore.audit._config import AuditConfig as AuditConfig
    from leakcore.audit._doctor import diagnose as diagnose
    from leakcore.audit._from_scores import from_scores as from_scores
    from leakcore.audit._from_trace import from_trace as from_trace
    from leakcore.audit._join import join as join
    from leakcore.audit._report import AuditReport as AuditReport
    from leakcore.audit._run import run as run
    from leakcore.audit._run_report import RunReport as RunReport
    from leakcore.audit._score_file import ScoreFile as ScoreFile
    from leakcore.audit._score_file import read_scores as read_scores
    from leakcore.audit._scores_report import ScoresReport as ScoresReport
    from leakcore.audit._selftest import SelfTest as SelfTest
    from leakcore.audit._selftest import selftest as selftest
    from leakcore.audit._trace_report import TraceReport as TraceReport
    from leakcore.audit._where import where_it_sits as where_it_sits

if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(
        __name__,
        {
            "AuditConfig": "._config",
            "ClaimConfig": "._claim_config",
            "ClaimReport": "._claim_report",
            "claim": "._claim_run",
            "AuditReport": "._report",
            "RunReport": "._run_report",
            "TraceReport": "._trace_report",
            "diagnose": "._doctor",
            "from_scores": "._from_scores",
            "from_trace": "._from_trace",
            "join": "._join",
            "read_scores": "._score_file",
            "ScoreFile": "._score_file",
            "ScoresReport": "._scores_report",
            "progress_bars": "leakcore._progress",
            "run": "._run",
            "SelfTest": "._selftest",
            "selftest": "._selftest",
            "where_it_sits": "._where",
        },
    )
